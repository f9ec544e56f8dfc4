"""How often each fp16 number stands in each group: all that clustering needs to know of a tensor.

An fp16 number has 65,536 codes, so that a histogram of codes loses nothing and its size does not
depend on the tensor. `shift` low bits of a code may be dropped: a cell then holds 2^shift codes.
Cells of numbers that are greater than all of a batch are left out: often more than half of them.
"""

from collections.abc import Iterable, Iterator
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np
from attrs import field, frozen
from numpy.typing import NDArray

if TYPE_CHECKING:
    import torch

Floats = NDArray[np.float64]
Index = NDArray[np.int64]
Codes = NDArray[np.uint16]
Weights = NDArray[np.float32] | Floats

CODES = 1 << 16
BLOCK = 256  # codes, a quarter of an octave: what is left out are whole blocks
INFINITE = 0x7C00  # the first code that is no number; the sign bit is apart
PIECE, FULL = 1 << 16, 4  # codes that are counted at once, at least; and for each cell
UNIT = 1024  # the mean weight as a whole number, so that sums are exact in any order
WHOLE = 1 << 24  # below it float32 holds all whole numbers


@frozen
class Histogram:
    """The mass of each group in all cells up to each one, in the order of codes, by their signs.

    Running sums are made while a group's counts are still in the processor's cache, and are what
    bins are cut from. Mass is a count or a sum of whole weights.
    """

    upto: NDArray[Any] = field(repr=False)
    """Whole numbers: [groups, 2, cells]; positive numbers first, both away from zero."""
    shift: int

    @property
    def groups(self) -> int:
        """How many groups there are."""
        return len(self.upto)

    def of(self, groups: Index) -> "Histogram":
        """The histograms of some of the groups."""
        return Histogram(self.upto[groups], self.shift)

    def total(self) -> Floats:
        """The mass of each cell in all groups together, of those left out too: [cells]."""
        whole = self.upto[:, :, -1].sum(dtype=np.int64)
        kind = np.int32 if whole < 1 << 31 else np.int64  # the first is summed faster
        found: Floats = self._masses(self.upto.sum(0, dtype=kind)[None], 1)[0]
        return found

    def masses(self, each: int = 1) -> Floats:
        """The mass of runs of so many cells, of those left out too: [groups, cells / each]."""
        return self._masses(self.upto[:, :, each - 1 :: each], each)

    def is_finite(self) -> bool:
        """Whether no infinity and no NaN was counted."""
        last = min(INFINITE >> self.shift, self.upto.shape[2]) - 1
        return bool((self.upto[:, :, last] == self.upto[:, :, -1]).all())

    def _masses(self, upto: NDArray[Any], each: int) -> Floats:
        found = np.zeros((len(upto), 2, CODES // 2 // each >> self.shift))
        found[:, :, 0] = upto[:, :, 0]
        found[:, :, 1 : upto.shape[2]] = upto[:, :, 1:] - upto[:, :, :-1]
        return found.reshape(len(found), -1)


def empty(groups: int, shift: int, *, peak: int, mass: float) -> Histogram:
    """A histogram whose groups are still to be filled.

    No code is beyond `peak`, its sign bit apart, and no group has more than this mass.
    """
    wide = (peak // BLOCK + 1) * BLOCK >> shift
    kind = np.int32 if mass < 1 << 31 else np.int64
    return Histogram(np.empty((groups, 2, wide), kind), shift)


def fill(into: Histogram, at: int, blocks: Iterable[tuple[Codes, Weights | None]]) -> None:
    """Count the codes of a group, in any shape; weights are whole numbers of that shape."""
    import torch

    counts = None
    for codes, weights in blocks:
        for part in _counts(codes.reshape(-1), weights, into):
            counts = part if counts is None else counts.add_(part)
    if counts is None:
        message = "a group has at least one weight"
        raise ValueError(message)
    torch.from_numpy(into.upto[at]).copy_(counts.cumsum_(1))


def _counts(codes: Codes, weights: Weights | None, into: Histogram) -> "Iterator[torch.Tensor]":
    """The mass of each cell, for a piece after another that the processor's cache holds."""
    import torch

    cells = CODES >> into.shift
    size = max(PIECE, FULL * cells)
    flat = None if weights is None else torch.from_numpy(weights.reshape(-1))
    for start in range(0, len(codes), size):
        part = codes[start : start + size]
        # Without its lowest bit a code is positive as an int16 too.
        index = (part >> into.shift).view(np.int16) if into.shift else part.astype(np.int32)
        some = None if flat is None else flat[start : start + size]
        found = _counted(torch.from_numpy(index), some, cells)
        found = found.as_strided(into.upto.shape[1:], (cells // 2, 1))
        yield found.long() if found.is_floating_point() else found


def _counted(index: "torch.Tensor", weights: "torch.Tensor | None", cells: int) -> "torch.Tensor":
    """Exact sums. In float32 they are if none is too large, for a sum that grows gets there."""
    import torch

    found = torch.bincount(index, weights, minlength=cells)
    if found.dtype == torch.float32 and found.max() >= WHOLE and weights is not None:
        return torch.bincount(index, weights.double(), minlength=cells)
    return found


@cache
def cell_values(shift: int) -> Floats:
    """The mean of the fp16 numbers in each cell; infinities and NaNs, which never count, are 0."""
    codes = np.arange(CODES, dtype=np.uint16).view(np.float16).astype(np.float64)
    codes[~np.isfinite(codes)] = 0.0
    means: Floats = codes.reshape(-1, 1 << shift).mean(1)
    means.flags.writeable = False  # everyone gets the same array
    return means
