"""What a compile will read, looked at before it is needed."""

from collections.abc import Iterator
from contextlib import contextmanager

from topoc.dsl.diagnostic import TopocError
from topoc.lowering.checkpoint.bind import bind
from topoc.lowering.checkpoint.digest import known_digest
from topoc.lowering.kept import Kept
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
    if request.cache is None:
        yield
        return
    with request.cache.ahead(_names(request, request.cache)):
        yield


def _names(request: Request, cache: Kept) -> list[str]:
    """The tables that a compile will ask for; of a checkpoint that is yet to be hashed, none."""
    if any(refusals(request.topology)):
        return []
    try:
        weights = bind(request.reader, request.architecture)
        laid = plan(request.topology, request.architecture, dtype=request.precision)
    except TopocError:
        return []  # the compile comes to the same place, and tells of it
    checkpoint = known_digest(weights.reader, cache)
    if checkpoint is None:
        return []
    tables, reuse = laid.host_tables, Reuse(checkpoint)
    return [name for table in tables for name in kept_files(laid, weights, table, reuse)]
