"""A batch's histograms as some thousand bins, narrow where clusters will be narrow.

In the best clustering of smooth data a region holds (mass · width²)^⅓ of the clusters (Panter and
Dite, 1951). Bins are shared out by that measure, averaged over the groups of a batch, so that a
group of small numbers gets its part. A bin lies inside one block of 256 codes, in which numbers
are evenly spaced, and none reaches over zero.
"""

from functools import cache
from typing import Any

import numpy as np
import torch
from attrs import field, frozen
from numpy.typing import NDArray

from topoc.lowering.compress.histogram import CODES, Floats, Histogram, Index, cell_values

Complex = NDArray[np.complex128]
BLOCK = 256  # codes: a quarter of an octave
BLOCKS = CODES // BLOCK
HALF = BLOCKS // 2
TOGETHER = 16  # groups whose bins fit the processor's cache
BY_VALUE = np.concatenate([np.arange(HALF, BLOCKS)[::-1], np.arange(HALF)])  # code to value order


@frozen
class Bins:
    """The bins of a batch in the order of their values, with what each group has in them."""

    moments: Complex = field(repr=False)
    """Mass and mass · value before each bin: real and imaginary, [groups, bins + 1]."""
    squares: Complex = field(repr=False)
    """Mass · value² and number of occupied bins before each bin: [groups, bins + 1]."""
    edges: Index = field(repr=False)  # the first bin of each block, and the end: [blocks + 1]
    mass: Floats = field(repr=False)  # of each block: [groups, blocks]
    hidden: Floats = field(repr=False)  # squared error inside bins, which no search sees: [groups]

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

    def squares_at(self, edges: Index) -> Complex:
        """The squares before these bins: any shape, whose last axis is the group."""
        return _taken(self.squares, edges)


def _taken(array: Complex, edges: Index) -> Complex:
    groups, count = array.shape
    found: Complex = np.take(array, edges + np.arange(groups) * count)
    return found


def make(histogram: Histogram, count: int) -> Bins:
    """About `count` bins for a batch of histograms, fewer where fewer codes occur."""
    total, mass = histogram.total(), _block_mass(histogram)
    cells = (total > 0).reshape(BLOCKS, -1).sum(1)
    # The squared error of a bin against that of its group's clusters, summed over the groups.
    share = measure((mass / measure(mass).sum(1, keepdims=True) ** 3).sum(0)[None])
    many = np.floor(water(share, cells[None], count)[0]).astype(np.int64)
    many = np.minimum(np.maximum(many, cells > 0), cells)
    starts, order = _starts(total > 0, cells, many), _by_value(many)
    values, spread = _shapes(total, starts, histogram.shift)
    moments, squares, hidden = _sums(histogram, starts, order, values, spread)
    edges = np.concatenate([[0], many[BY_VALUE].cumsum()])
    return Bins(moments, squares, edges, mass[:, BY_VALUE], hidden)


def _sums(
    histogram: Histogram, starts: Index, order: Index, values: Floats, spread: Floats
) -> tuple[Complex, Complex, Floats]:
    """Moments, squares and hidden error of each group's bins, in the order of their values."""
    groups, count = histogram.groups, len(starts)
    moments = torch.empty((groups, count + 1), dtype=torch.complex128)
    squares = torch.empty((groups, count + 1), dtype=torch.complex128)
    moments[:, 0] = squares[:, 0] = 0.0
    hidden = torch.empty(groups, dtype=torch.float64)
    ends = np.append(starts[1:], histogram.upto.shape[1])
    by, inside = torch.from_numpy(values[order]), torch.from_numpy(spread[order])
    for at in range(0, groups, TOGETHER):
        some = slice(at, at + TOGETHER)
        mass = _between(histogram.upto[some], ends)[:, torch.from_numpy(order)]
        hidden[some] = mass @ inside
        first = mass * by
        torch.cumsum(torch.complex(mass, first), 1, out=moments[some, 1:])
        torch.cumsum(torch.complex(first * by, mass.sign()), 1, out=squares[some, 1:])
    return moments.numpy(), squares.numpy(), hidden.numpy()


def _block_mass(histogram: Histogram) -> Floats:
    """The mass of each block: [groups, blocks], in code order."""
    ends = np.arange(1, BLOCKS + 1) * (BLOCK >> histogram.shift)
    mass: Floats = _between(histogram.upto, ends).numpy()
    return mass


def _between(upto: NDArray[Any], ends: Index) -> torch.Tensor:
    """The mass in the cells from each end to the next, the first from the start."""
    found = torch.from_numpy(upto).index_select(1, torch.from_numpy(ends - 1)).double()
    return torch.diff(found, dim=1, prepend=found.new_zeros(len(found), 1))


@cache
def widths() -> Floats:
    """From one end of each block of codes to the other, in code order: [blocks]."""
    exponent = np.maximum(np.arange(HALF) // (1024 // BLOCK), 1)
    found: Floats = np.tile(BLOCK * 2.0 ** (exponent - 25), 2)
    found.flags.writeable = False  # everyone gets the same array
    return found


def measure(mass: Floats, *, by_value: bool = False) -> Floats:
    """The part of the clusters that belongs to each block, up to a factor: [groups, blocks]."""
    wide = widths()[BY_VALUE] if by_value else widths()
    found: Floats = np.cbrt(mass * wide * wide)
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


def _starts(occupied: NDArray[np.bool_], cells: Index, many: Index) -> Index:
    """The first cell of each bin, in code order; a block's bins halve its occupied cells evenly."""
    places = np.flatnonzero(occupied)
    before = np.concatenate([[0], cells.cumsum()[:-1]])
    block = np.repeat(np.arange(BLOCKS), many)
    nth = np.arange(len(block)) - np.repeat(np.cumsum(many) - many, many)
    found: Index = places[before[block] + nth * cells[block] // many[block]]
    return found


def _by_value(many: Index) -> Index:
    """Bins in code order, as an order of their values: those of negative numbers turn around."""
    negative, total = int(many[HALF:].sum()), int(many.sum())
    return np.concatenate([np.arange(total - negative, total)[::-1], np.arange(total - negative)])


def _shapes(total: Floats, starts: Index, shift: int) -> tuple[Floats, Floats]:
    """The mean of each bin over the batch, and the squared deviation of a number in it."""
    cells = cell_values(shift)
    mass = np.add.reduceat(total, starts)
    values = np.add.reduceat(total * cells, starts) / mass
    spread = np.repeat(values, np.diff(np.append(starts, len(cells))))
    inside = np.zeros_like(cells)
    inside[starts[0] :] = total[starts[0] :] * (cells[starts[0] :] - spread) ** 2
    step = np.repeat(widths() / BLOCK, BLOCK >> shift)[starts]
    merged = step * step * ((1 << 2 * shift) - 1) / 12.0
    return values, np.add.reduceat(inside, starts) / mass + merged
