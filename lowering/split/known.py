"""The layouts that stand beside a topology: their cuts, judged and priced like any other."""

from collections.abc import Iterator
from pathlib import Path

from attrs import frozen

from topoc.dsl.diagnostic import Diagnostic
from topoc.dsl.library import STDIN, find, shipped
from topoc.dsl.lint.engine import unasked
from topoc.dsl.load import Loader
from topoc.dsl.model import Topology
from topoc.dsl.plain import Plain
from topoc.dsl.resolve import Given
from topoc.lowering.cost.features import Features, features
from topoc.lowering.cost.rows import device_of, step_ms
from topoc.lowering.split.judge import errors
from topoc.lowering.split.space import Cuts, cuts_of


@frozen(kw_only=True, eq=False, repr=False)
class Figure(Plain):
    """What a device said of a decode step, in ms; of several blocks the least and the most."""

    device: str
    low: float
    high: float


@frozen(kw_only=True, eq=False, repr=False)
class Known(Plain):
    """A layout beside the topology under split, cut as it is."""

    name: str
    cuts: Cuts
    figures: tuple[Figure, ...]
    alike: bool  # whether its own programs cost what a split of the topology does
    refused: tuple[Diagnostic, ...]  # by the topology's own budgets and rules


def beside(path: str, topology: Topology, model: Path | None) -> tuple[Known, ...]:
    """The layouts of the same checkpoint in the file's folder, or among those that topoc ships."""
    folder = Path() if path == STDIN else find(path).parent
    files = {*folder.glob("*.topo"), *shipped().values()}
    loader = Loader(Given({}, model, None), look=unasked)
    found = []
    for one in sorted(files):
        for loaded in _loaded(loader, str(one)):
            found += [_known(loaded, topology)] if _comparable(loaded, topology) else []
    names: dict[str, Known] = {}
    for known in found:
        names.setdefault(known.name, known)
    return tuple(names.values())


def _loaded(loader: Loader, path: str) -> Iterator[Topology]:
    from topoc.dsl.diagnostic import TopocError

    try:
        for one in loader.all(path):
            if one.topology is not None:
                yield one.topology
    except (TopocError, OSError):
        return  # a neighbour that can't be read is not what was asked about


def _comparable(other: Topology, topology: Topology) -> bool:
    same = (other.context, len(other.blocks), other.target.unit)
    table = other.layers.layers == topology.layers.layers
    runs = [one.chunks for one in other.functions if one.role == "decode"]
    mine = (topology.context, len(topology.blocks), topology.target.unit)
    return table and same == mine and runs == [None]


def _known(other: Topology, topology: Topology) -> Known:
    from topoc.lowering.split.recut import recut

    cuts = cuts_of(other.chunks)
    return Known(
        name=other.name,
        cuts=cuts,
        figures=tuple(_figures(other)),
        alike=_decoded(other) == _decoded(recut(topology, cuts)),
        refused=errors(topology, cuts),
    )


def _decoded(topology: Topology) -> tuple[Features, ...]:
    (function,) = [one for one in topology.functions if one.role == "decode"]
    return features(topology, function)


def _figures(topology: Topology) -> Iterator[Figure]:
    by_device: dict[str, list[float]] = {}
    for block in topology.measurements:
        ms = step_ms(topology, block)
        if ms is not None:
            by_device.setdefault(device_of(block), []).append(ms)
    for device, values in by_device.items():
        yield Figure(device=device, low=min(values), high=max(values))
