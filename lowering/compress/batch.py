"""A batch of groups: its histograms, its tables, its indices.

What stands in a batch decides on its bins and so on the last digits of its tables. A batch is
therefore cut from one tensor by its shape alone, never by the number of processes.
"""

from collections.abc import Iterator

import numpy as np
from attrs import define, field, frozen
from numpy.typing import NDArray

from topoc.lowering.compress import histogram as hist
from topoc.lowering.compress import kmeans, tables
from topoc.lowering.compress.histogram import CODES, Codes, Floats, Histogram, Weights
from topoc.lowering.compress.importance import Importance
from topoc.lowering.compress.method import AGAIN, GROUPS, WEIGHTS
from topoc.lowering.compress.recipe import Palettize
from topoc.lowering.compress.source import BLOCK, Source, codes, spans, unfit


@frozen
class Groups:
    """The rows of a matrix in groups; the last may be shorter."""

    rows: int
    columns: int
    each: int  # rows

    @property
    def count(self) -> int:
        """How many groups there are."""
        return -(-self.rows // self.each)

    def span(self, group: int) -> tuple[int, int]:
        """The rows of a group."""
        return group * self.each, min((group + 1) * self.each, self.rows)

    def batches(self) -> Iterator[range]:
        """The groups of each batch."""
        step = max(1, min(GROUPS, WEIGHTS // (self.each * self.columns)))
        for at in range(0, self.count, step):
            yield range(at, min(at + step, self.count))


@frozen
class Fitted:
    """The tables of a batch: [groups, entries]; as steps of a scale too, where they are int8."""

    entries: NDArray[np.float16]
    steps: NDArray[np.int8]
    scales: NDArray[np.float16]


@define
class Batch:
    """Some groups of a source, read once where they fit memory."""

    source: Source
    groups: Groups
    some: range
    importance: Importance | None
    _held: list[Codes] = field(init=False)
    _first: int = field(init=False)  # row
    _tall: int = field(init=False)  # rows of a held block: some whole groups
    _peak: int = field(init=False, default=CODES // 2 - 1)  # no code is beyond it
    _same: dict[int, Weights] = field(init=False, factory=dict)  # of so many rows

    def __attrs_post_init__(self) -> None:
        """Read the rows, unless one group alone is too large to be held."""
        first, last = self._span()
        self._first = first
        columns = self.groups.columns
        each = self.groups.each
        self._tall = max(1, BLOCK // (each * columns)) * each
        self._held = []
        if (last - first) * columns <= WEIGHTS:
            for start in range(first, last, self._tall):
                stop = min(start + self._tall, last)
                self._held.append(codes(self.source, start, stop))
            if len(self.some) > 1:  # one histogram is made sooner than it is known
                self._peak = max(_peak(block) for block in self._held)

    def fitted(self, how: Palettize) -> Fitted:
        """The best tables that were found."""
        counted = self._histogram(self.some, kmeans.EFFORTS[how.bits].shift)
        if not counted.is_finite():
            raise unfit(self.source, *self._span())
        found = kmeans.first_look(counted, how.bits)
        del counted
        for at in range(0, len(found.again), AGAIN):
            part = found.again[at : at + AGAIN]
            whole = self._histogram([self.some[one] for one in part], 0)
            found.centres[:, part] = kmeans.second_look(whole, how.bits)
        return _rounded(found.centres, how)

    def indices(self, fitted: Fitted) -> Iterator[NDArray[np.uint8]]:
        """The nearest entry of each weight, in runs that last until the next one is asked for."""
        nearest = tables.Nearest.to(fitted.entries)
        room = np.empty(0, np.uint8)
        for at, block in self._grouped():
            if len(room) < block.size:
                room = np.empty(block.size, np.uint8)
            out = room[: block.size].reshape(block.shape)
            nearest.write(out, at, block)
            yield out

    def _histogram(self, groups: "range | list[int]", shift: int) -> Histogram:
        heaviest = float(self.groups.columns)
        if self.importance is not None:
            heaviest = self.importance.heaviest(*self._span(), self.groups.columns)
        mass = heaviest * self.groups.each
        counted = hist.empty(len(groups), shift, peak=self._peak, mass=mass)
        for at, group in enumerate(groups):
            hist.fill(counted, at, self._weighted(group))
        return counted

    def _weighted(self, group: int) -> Iterator[tuple[Codes, Weights | None]]:
        for start, block in self._blocks(group):
            yield block, self._weights(start, start + len(block))

    def _weights(self, start: int, stop: int) -> Weights | None:
        if self.importance is None:
            return None
        if self.importance.rows is not None:
            return self.importance.weights(start, stop, self.groups.columns)
        tall = stop - start  # all rows have the same weights
        if tall not in self._same:
            self._same[tall] = self.importance.weights(start, stop, self.groups.columns)
        return self._same[tall]

    def _grouped(self) -> Iterator[tuple[int, Codes]]:
        """All codes in turn, as [groups, weights], with the place of each block's first group."""
        each, at = self.groups.each, 0
        for block in self._held:
            whole = len(block) // each
            if whole:
                yield at, block[: whole * each].reshape(whole, -1)
            if len(block) % each:  # the last group's
                yield at + whole, block[whole * each :].reshape(1, -1)
            at += whole
        if not self._held:
            for at, group in enumerate(self.some):
                for _, block in self._blocks(group):
                    yield at, block.reshape(1, -1)

    def _blocks(self, group: int) -> Iterator[tuple[int, Codes]]:
        """The codes of a group's rows, with the first row of each block."""
        start, stop = self.groups.span(group)
        if self._held:
            block, at = divmod(start - self._first, self._tall)
            yield start, self._held[block][at : at + stop - start]
            return
        for at, end in spans(start, stop, self.groups.columns):
            yield at, codes(self.source, at, end)

    def _span(self) -> tuple[int, int]:
        return self.groups.span(self.some[0])[0], self.groups.span(self.some[-1])[1]


def _peak(block: Codes) -> int:
    """The greatest code, its sign bit apart."""
    return max(int(block.view(np.int16).max()), int(block.max()) - CODES // 2, 0)


def _rounded(centres: Floats, how: Palettize) -> Fitted:
    """Tables of the centres: [groups, entries]."""
    if how.lut == "fp16":
        return Fitted(tables.rounded(centres), np.empty(0, np.int8), np.empty(0, np.float16))
    steps, scales = tables.stepped(centres)
    return Fitted((steps * scales[:, None].astype(np.float32)).astype(np.float16), steps, scales)
