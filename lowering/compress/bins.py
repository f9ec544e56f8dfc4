"""A batch's histograms as some thousand bins, narrow where clusters will be narrow.

In the best clustering of smooth data a region holds (mass · width²)^⅓ of the clusters (Panter and
Dite, 1951). Bins are shared out by that measure, averaged over the groups of a batch, so that a
group of small numbers gets its part. A bin lies inside one block of 256 codes, in which numbers
are evenly spaced, and none reaches over zero.
"""

from functools import cache
from typing import Any, TypeVar

import numpy as np
import torch
from attrs import field, frozen
from numpy.typing import NDArray

from topoc.lowering.compress.histogram import BLOCK, CODES, Floats, Histogram, Index, cell_values

Complex = NDArray[np.complex128]
_Number = TypeVar("_Number", np.complex128, np.float64, np.int64)
BLOCKS = CODES // BLOCK
HALF = BLOCKS // 2
TOGETHER = 1 << 16  # bins of some groups, which fit the processor's cache
BY_VALUE = np.concatenate([np.arange(HALF, BLOCKS)[::-1], np.arange(HALF)])  # code to value order


@frozen
class Bins:
    """The bins of a batch in the order of their values, with what each group has in them."""

    moments: Complex = field(repr=False)
    """Mass and mass · value before each bin: real and imaginary, [groups, bins + 1]."""
    squares: Floats = field(repr=False)
    """Mass · value² before each bin: [groups, bins + 1]."""
    occupied: Index = field(repr=False)
    """Bins of each block that are not empty: [groups, blocks with bins]."""
    hidden: Floats = field(repr=False)  # squared error inside bins, which no search sees: [groups]
    edges: Index = field(repr=False)  # the first bin of each of these blocks, and the end
    share: Floats = field(repr=False)  # of the clusters in each of them, up to a factor

    @property
    def groups(self) -> int:
        """How many groups the batch has."""
        return len(self.moments)

    @property
    def count(self) -> int:
        """How many bins there are."""
        return int(self.moments.shape[1]) - 1

    def moments_at(self, edges: Index) -> Complex:
        """The moments before these bins: any shape, whose last axis is the group."""
        return _taken(self.moments, edges)

    def squares_at(self, edges: Index) -> Floats:
        """The squares before these bins: any shape, whose last axis is the group."""
        return _taken(self.squares, edges)


def _taken(array: NDArray[_Number], edges: Index) -> NDArray[_Number]:
    groups, count = array.shape
    found: NDArray[_Number] = array.take(edges + np.arange(0, groups * count, count))
    return found


def between(sums: NDArray[_Number]) -> NDArray[_Number]:
    """What running sums grow by from one row to the next; `numpy.diff` is slow to begin."""
    return sums[1:] - sums[:-1]


@frozen
class Cut:
    """Where the bins of a batch begin, and what all its groups share of them."""

    starts: Index = field(repr=False)  # the first cell of each bin, in code order
    values: Floats = field(repr=False)  # the mean of each bin, in code order
    spread: Floats = field(repr=False)  # the squared deviation of a number in it, likewise
    negative: int  # how many bins are below zero
    edges: Index = field(repr=False)  # the first bin of each block that has any, and the end
    share: Floats = field(repr=False)  # of a group's clusters in each of them, up to a factor

    def bins(self, histogram: Histogram, some: slice = slice(None)) -> Bins:
        """The bins of some of the groups."""
        upto, count = histogram.upto[some], len(self.starts)
        moments = np.empty((len(upto), count + 1), np.complex128)
        squares = np.empty((len(upto), count + 1))
        occupied = np.empty((len(upto), len(self.edges) - 1), np.int64)
        hidden = np.empty(len(upto))
        places = _places(self.starts, self.negative, histogram)
        order = _by_value(count, self.negative)
        values, spread = torch.from_numpy(self.values[order]), self.spread[order]
        step = max(1, TOGETHER // count)
        for at in range(0, len(upto), step):
            part = slice(at, at + step)
            before = torch.from_numpy(_before(upto[part], places, self.negative))
            mass = before[:, 1:] - before[:, :-1]
            _sum(moments[part], squares[part], before, mass * values, values)
            each = mass.numpy()
            held = (each > 0).astype(np.int64)
            np.add.reduceat(held, self.edges[:-1], 1, out=occupied[part])
            each *= spread  # without BLAS, whose other threads would spin
            hidden[part] = each.sum(1)
        return Bins(moments, squares, occupied, hidden, self.edges, self.share[some])


def make(histogram: Histogram, count: int) -> Bins:
    """About `count` bins for a batch of histograms, fewer where fewer codes occur."""
    return cut(histogram, count).bins(histogram)


def cut(histogram: Histogram, count: int) -> Cut:
    """The same, before what each group has in them is summed up."""
    total, mass = histogram.total(), histogram.masses(BLOCK >> histogram.shift)
    places = np.flatnonzero(total > 0)
    upto = np.searchsorted(places, np.arange(BLOCKS + 1) * (BLOCK >> histogram.shift))
    cells = np.diff(upto)
    # The squared error of a bin against that of its group's clusters, summed over the groups.
    share = measure(mass)
    whole = measure((mass / share.sum(1, keepdims=True) ** 3).sum(0)[None])
    many = np.floor(water(whole, cells[None], count)[0]).astype(np.int64)
    many = np.minimum(np.maximum(many, cells > 0), cells)
    first = _firsts(upto[:-1], cells, many)
    values, spread = _shapes(total[places], places, first, histogram.shift)
    used = BY_VALUE[many[BY_VALUE] > 0]
    edges = np.concatenate([[0], many[used].cumsum()])
    return Cut(places[first], values, spread, int(many[HALF:].sum()), edges, share[:, used])


def _sum(
    moments: Complex, squares: Floats, before: torch.Tensor, first: torch.Tensor, by: torch.Tensor
) -> None:
    """Running sums of the mass, which is there, of the first and of the second moment."""
    moments[:, 0] = squares[:, 0] = 0.0
    parts = torch.view_as_real(torch.from_numpy(moments))
    parts[:, :, 0] = before
    torch.cumsum(first, 1, out=parts[:, 1:, 1])
    torch.cumsum(first * by, 1, out=torch.from_numpy(squares)[:, 1:])


def _places(starts: Index, negative: int, histogram: Histogram) -> Index:
    """The cells up to which running sums tell the mass between each bin and zero, by value."""
    half, cells = HALF * BLOCK >> histogram.shift, histogram.upto.shape[2]
    ends = np.append(starts[1:], 2 * half) - 1
    above, below = ends[: len(ends) - negative], ends[len(ends) - negative :]
    below = below[::-1] - half
    found: Index = np.minimum(np.concatenate([below, above]), cells - 1)  # none behind has mass
    found[:negative] += cells
    return found


def _before(upto: NDArray[Any], places: Index, negative: int) -> Floats:
    """The mass before each bin; negative numbers, whose codes run backwards, come first."""
    whole = upto[:, 1, -1:]
    behind = upto.reshape(len(upto), -1).take(places, 1, mode="clip")  # which checks nothing
    found = np.empty((len(upto), len(places) + 1))
    np.subtract(whole, behind[:, :negative], out=found[:, :negative])
    found[:, negative : negative + 1] = whole
    np.add(whole, behind[:, negative:], out=found[:, negative + 1 :])
    return found


@cache
def widths() -> Floats:
    """From one end of each block of codes to the other, in code order: [blocks]."""
    exponent = np.maximum(np.arange(HALF) // (1024 // BLOCK), 1)
    found: Floats = np.tile(BLOCK * 2.0 ** (exponent - 25), 2)
    found.flags.writeable = False  # everyone gets the same array
    return found


def measure(mass: Floats) -> Floats:
    """The part of the clusters that belongs to each block, up to a factor: [groups, blocks]."""
    # A cube root's last bits are those of a processor; its first 24 are not.
    found: Floats = np.cbrt(mass * widths() * widths()).astype(np.float32).astype(np.float64)
    return found


def water(share: Floats, most: NDArray[np.int64], count: int) -> Floats:
    """`count` in proportion to the shares, no place above its most: [groups, places]."""
    full = share <= 0.0
    given = np.zeros_like(share)
    for _ in range(8):  # each round only fills more places
        left = count - np.where(full, given, 0.0).sum(1, keepdims=True)
        open_share = np.where(full, 0.0, share)
        total = open_share.sum(1, keepdims=True)
        level = np.divide(left, total, out=np.zeros_like(total), where=total > 0)
        given = np.where(full, given, level * open_share)
        over = ~full & (given >= most)
        if not over.any():
            break
        given = np.where(over, most, given)
        full |= over
    return np.minimum(given, most)


def _firsts(before: Index, cells: Index, many: Index) -> Index:
    """Which occupied cell begins each bin; the bins of a block halve its occupied cells evenly."""
    nth = np.arange(many.sum()) - np.repeat(np.cumsum(many) - many, many)
    found: Index = nth * np.repeat(cells, many) // np.repeat(many, many)
    found += np.repeat(before, many)
    return found


def _by_value(count: int, negative: int) -> Index:
    """Bins in code order, as an order of their values: those of negative numbers turn around."""
    return np.concatenate([np.arange(count - negative, count)[::-1], np.arange(count - negative)])


def _shapes(mass: Floats, places: Index, first: Index, shift: int) -> tuple[Floats, Floats]:
    """The mean of each bin over the batch, and the squared deviation of a number in it."""
    cells, whole = cell_values(shift)[places], np.add.reduceat(mass, first)
    values = np.add.reduceat(mass * cells, first) / whole
    inside = cells - np.repeat(values, between(np.append(first, len(cells))))
    inside *= inside
    inside *= mass
    return values, np.add.reduceat(inside, first) / whole + _merged(shift)[places[first]]


@cache
def _merged(shift: int) -> Floats:
    """The mean squared deviation of the codes of each cell from its mean: [cells]."""
    step = np.repeat(widths() / BLOCK, BLOCK >> shift)
    found: Floats = step * step * ((1 << 2 * shift) - 1) / 12.0
    found.flags.writeable = False  # everyone gets the same array
    return found
