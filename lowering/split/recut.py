"""A split as a topology over the one it came from: its text, and what it means."""

import json
from collections.abc import Sequence

from attrs import evolve

from topoc.dsl.layout import lay_out
from topoc.dsl.model import Chunk, Part, Topology, Verdict
from topoc.dsl.source import Source, Span
from topoc.lowering.split.space import Cuts, others, spelled


def name_of(topology: Topology, cuts: Cuts) -> str:
    """A name for a split: the base's, and the layers of each chunk."""
    return f"{topology.name}_{spelled(cuts).replace('/', '_')}"


def recut(topology: Topology, cuts: Cuts) -> Topology:
    """What the text of a split resolves to; places are in that text.

    Verdict, doc and measurements stay with the base, and so do allowances for one of its chunks.
    """
    name, lines = name_of(topology, cuts), _lines(topology, cuts)
    text = "\n".join([f"topology {name} extends {topology.name} {{", *lines, "}"]) + "\n"
    source = Source(f"{name}.topo", text)
    return evolve(
        topology,
        name=name,
        doc="",
        status="prototype",
        verdict=Verdict(),
        measurements=(),
        allowances=tuple(one for one in topology.allowances if one.chunk is None),
        chunks=_chunks(topology, cuts, source, lines),
        span=Span(source, len("topology "), len("topology ") + len(name)),
    )


def text_of(
    topology: Topology,
    cuts: Cuts,
    *,
    base: str,
    doc: str,
    allowed: Sequence[tuple[str, str]] = (),
    settings: Sequence[str] = (),
) -> str:
    """The file of a split in canonical layout.

    `base` is what it extends, as written; `allowed` the codes that it allows, with the reasons;
    `settings` statements that the command line gave and the base's file does not hold.
    """
    allows = [f"allow {code} because {json.dumps(reason)}" for code, reason in allowed]
    lines = [
        f"topology {name_of(topology, cuts)} extends {base} {{",
        f"doc {json.dumps(doc, ensure_ascii=False)}",
        "status prototype",
        *settings,
        *(line.strip() for line in _lines(topology, cuts)),
        *_own(topology),
        *allows,
        "}",
    ]
    return lay_out(Source(f"{name_of(topology, cuts)}.topo", "\n".join(lines)))


def _own(topology: Topology) -> list[str]:
    """The chunk lines of functions with lists of their own, which all chunk lines replace."""
    return [
        f"chunk {chunk.name}(function = {function.name}) = {_parts(chunk.parts)}"
        for function in topology.functions
        for chunk in function.chunks or ()
    ]


def _lines(topology: Topology, cuts: Cuts) -> list[str]:
    """The chunk lines: the first chunk has what comes before the layers, the last the rest."""
    units = {one.unit for one in topology.chunks}
    unit = units.pop() if len(units) == 1 else None
    given = f"(unit = {unit})" if unit else ""
    return [
        f"  chunk chunk{number}{given} = {_parts(_of(topology, cuts, number - 1))}"
        for number in range(1, len(cuts))
    ]


def _of(topology: Topology, cuts: Cuts, at: int) -> tuple[Part, ...]:
    before, after = others(topology)
    layers = Part(kind="layers", first=cuts[at], last=cuts[at + 1] - 1)
    first, last = at == 0, at == len(cuts) - 2
    return (*(before if first else ()), layers, *(after if last else ()))


def _parts(parts: Sequence[Part]) -> str:
    return " + ".join(map(_part, parts))


def _part(part: Part) -> str:
    if part.kind == "layers":
        end = f"-{part.last}" if part.last > part.first else ""
        return f"L{part.first}{end}"
    if part.head is None:
        return part.kind
    mode = f"topk = {part.head.k}" if part.head.mode == "topk" else part.head.mode
    split = f", split = {part.head.split}" if part.head.split > 1 else ""
    return f"head({mode}{split})"


def _chunks(
    topology: Topology, cuts: Cuts, source: Source, lines: Sequence[str]
) -> tuple[Chunk, ...]:
    """The chunks, each at its line."""
    units = {one.unit for one in topology.chunks}
    unit = units.pop() if len(units) == 1 else None
    found, start = [], source.text.index("\n") + 1
    for at, line in enumerate(lines):
        name = f"chunk{at + 1}"
        place = Span(source, start + line.index(name), start + line.index(name) + len(name))
        whole = Span(source, start + line.index("=") + 2, start + len(line))
        parts = tuple(evolve(one, span=whole) for one in _of(topology, cuts, at))
        found.append(Chunk(name=name, parts=parts, unit=unit, span=place))
        start += len(line) + 1
    return tuple(found)
