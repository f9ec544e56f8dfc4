"""The `measured` blocks of topologies as rows that a fit can use."""

from collections.abc import Iterable, Iterator

from attrs import frozen

from topoc.dsl.model import Chunk, Function, Measurement, Topology
from topoc.dsl.plain import Plain
from topoc.lowering.cost.features import Features, features

_PLACED = 95.0  # %: below it a chunk's time is that of the units that it fell to
_ENGINE = "ane"


@frozen(kw_only=True, eq=False, repr=False)
class Row(Plain):
    """One chunk's figure in ms."""

    topology: str
    chunk: str
    function: str
    date: str
    features: Features
    ms: float


def name_of(row: Row) -> str:
    """What a row is of, in words: topology, chunk, function unless it is decode, month and day."""
    function = "" if row.function == "decode" else f" {row.function}"
    return f"{row.topology} {row.chunk}{function} {row.date[5:]}"


@frozen(kw_only=True, eq=False, repr=False)
class Call(Plain):
    """A whole call's figure in ms, and the sum of its chunks' in the same block, if all stand."""

    topology: str
    function: str
    date: str
    features: tuple[Features, ...]
    ms: float
    chunks_ms: float | None


@frozen(kw_only=True, eq=False, repr=False)
class Rows(Plain):
    """What the blocks of one device tell, and in words what was left aside."""

    chip: str | None
    device: str
    rows: tuple[Row, ...]
    calls: tuple[Call, ...]
    aside: tuple[str, ...]


def devices(topologies: Iterable[Topology]) -> dict[str, int]:
    """The devices that have figures, and how many."""
    found: dict[str, int] = {}
    for topology in topologies:
        for one in topology.measurements:
            name = device_of(one)
            found[name] = found.get(name, 0) + len(one.figures)
    return found


def rows(topologies: Iterable[Topology], device: str) -> Rows:
    """The figures of one device in the blocks of topologies."""
    chips, chunks, calls, aside = [], [], [], []
    for topology in topologies:
        for block in topology.measurements:
            if device_of(block) != device:
                aside.append(f"{topology.name} on {block.date}: {device_of(block)}")
                continue
            chips.append(topology.target.chip)
            single = list(_rows(topology, block, aside))
            chunks += single
            calls += list(_calls(topology, block, single))
    chip = max(set(chips), key=chips.count) if chips else None
    return Rows(
        chip=chip, device=device, rows=tuple(chunks), calls=tuple(calls), aside=tuple(aside)
    )


def device_of(block: Measurement) -> str:
    """The device that a block names."""
    return dict(block.notes).get("device", "no device stated")


def _rows(topology: Topology, block: Measurement, aside: list[str]) -> Iterator[Row]:
    placed = {words[1]: value for words, value, _ in block.figures if words[0] == "placement"}
    for words, value, unit in block.figures:
        found = _chunk(topology, words)
        if found is None or unit not in {"ms", "s"}:
            continue
        function, at, chunk = found
        name = f"{topology.name} {chunk.name} on {block.date}"
        if placed.get(chunk.name, 100.0) < _PLACED:
            aside.append(f"{name}: {placed[chunk.name]:g} % of it runs on the Neural Engine")
        elif _unit(topology, function, chunk) != _ENGINE:
            aside.append(f"{name}: it runs on {_unit(topology, function, chunk)}")
        else:
            yield Row(
                topology=topology.name,
                chunk=chunk.name,
                function=function.name,
                date=block.date,
                features=features(topology, function)[at],
                ms=value * (1000 if unit == "s" else 1),
            )


def _chunk(topology: Topology, words: tuple[str, ...]) -> tuple[Function, int, Chunk] | None:
    """The chunk that a figure is about, in its function's list; decode where none is named."""
    for function in topology.functions:
        if words[1:] != (function.name,) and (words[1:] or function.role != "decode"):
            continue
        for at, chunk in enumerate(topology.chunks_of(function)):
            if chunk.name == words[0]:
                return function, at, chunk
    return None


def _unit(topology: Topology, function: Function, chunk: Chunk) -> str:
    return chunk.unit or function.unit or topology.target.unit


def _calls(topology: Topology, block: Measurement, single: list[Row]) -> Iterator[Call]:
    chunks = {chunk.name for chunk in topology.chunks}
    for words, value, unit in block.figures:
        for function in topology.functions:
            if words != (function.name,) or function.name in chunks or value <= 0:
                continue
            listed = topology.chunks_of(function)
            if any(_unit(topology, function, one) != _ENGINE for one in listed):
                continue
            told = {one.chunk: one.ms for one in single if one.function == function.name}
            complete = all(one.name in told for one in listed)
            yield Call(
                topology=topology.name,
                function=function.name,
                date=block.date,
                features=features(topology, function),
                ms=_ms(value, unit, function.tokens),
                chunks_ms=sum(told[one.name] for one in listed) if complete else None,
            )


def _ms(value: float, unit: str, tokens: int) -> float:
    if unit == "tok/s":
        return 1000 * tokens / value
    return value * (1000 if unit == "s" else 1)


def step_ms(topology: Topology, block: Measurement) -> float | None:
    """What a block says of a whole decode step: its own figure, else the sum of all its chunks'."""
    for function in topology.functions:
        if function.role != "decode":
            continue
        for words, value, unit in block.figures:
            if words == (function.name,) and value > 0:
                return _ms(value, unit, function.tokens)
        single = [one for one in _rows(topology, block, []) if one.function == function.name]
        told = {one.chunk: one.ms for one in single}
        names = [one.name for one in topology.chunks_of(function)]
        if names and all(name in told for name in names):
            return sum(told[name] for name in names)
    return None
