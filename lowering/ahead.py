"""What a compile will read, looked at before it is needed."""

from collections.abc import Iterator
from contextlib import contextmanager

from topoc.dsl.diagnostic import TopocError
from topoc.lowering.checkpoint.bind import bind
from topoc.lowering.checkpoint.digest import digest
from topoc.lowering.plan import plan
from topoc.lowering.refuse import refusals
from topoc.lowering.request import Request
from topoc.lowering.reuse import Reuse
from topoc.lowering.tables import kept_files


@contextmanager
def looking_ahead(request: Request) -> Iterator[None]:
    """Within the block, check kept tables in the background.

    Programs are emitted and judged meanwhile, which leaves a processor idle.
    """
    cache, names = request.cache, _names(request)
    if cache is None or not names:
        yield
        return
    with cache.ahead(names):
        yield


def _names(request: Request) -> list[str]:
    """The tables that a compile will ask for.

    Those of a checkpoint in files are known by its hash, which takes longer than to check them.
    """
    if request.reader.files or any(refusals(request.topology)):
        return []
    try:
        weights = bind(request.reader, request.architecture)
        laid = plan(request.topology, request.architecture, dtype=request.precision)
    except TopocError:
        return []  # the compile comes to the same place, and tells of it
    reuse = Reuse(digest(weights.reader))
    return [name for table in laid.host_tables for name in kept_files(laid, weights, table, reuse)]
