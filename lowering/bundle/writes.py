"""Who puts a call's rows into the caches: the graph, or the host after the call."""

from collections import Counter
from collections.abc import Iterator

from attrs import frozen

from topoc.lowering.manifest import Function, Manifest, Output, Row, Step

Place = tuple[str, int]
"""A buffer's id and one of its rows."""


@frozen
class Writes:
    """How often a function's sinks write each row, and the states that its packages hold."""

    replaced: Counter[Place]
    handed: Counter[Place]
    held: frozenset[str]

    def in_graph(self, buffer: str, row: int) -> bool:
        """Whether the row is written while a step runs, into the buffer or the package's state."""
        place = buffer, row
        return place in self.replaced or (buffer in self.held and place not in self.handed)

    def by_host(self, buffer: str, row: int) -> bool:
        """Whether the host stores what the call hands out."""
        return (buffer, row) in self.handed


def writes_of(function: Function) -> Writes:
    """What a call of this function writes."""
    outputs = [one for step in function.steps for one in step.outputs]
    return Writes(
        Counter(place for one in outputs if one.sink.kind == "buffer" for place in _covered(one)),
        Counter(place for one in outputs if one.sink.kind == "rows" for place in _covered(one)),
        frozenset(buffer for step in function.steps for _, buffer in states_of(step)),
    )


def states_of(step: Step) -> Iterator[tuple[str, str]]:
    """Each state that a step's package holds: its feature, and the buffer that it is."""
    for one in step.inputs:
        if one.source.kind == "state":
            yield one.feature, str(one.source.name)


def graph_rows(manifest: Manifest, writes: Writes) -> Iterator[Row]:
    """The rows of caches that are written while a function's steps run."""
    for buffer in manifest.buffers:
        for at, row in enumerate(buffer.rows):
            if writes.in_graph(buffer.id, at):
                yield row


def _covered(one: Output) -> Iterator[Place]:
    """The rows of its buffer that an output fills; its first axis counts them."""
    first = one.sink.row
    count = one.shape[0] if one.shape else 0
    for row in range(first, first + count):
        yield str(one.sink.name), row
