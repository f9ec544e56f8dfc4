"""How often each fp16 number stands in each group: all that clustering needs to know of a tensor.

An fp16 number has 65,536 codes, so that a histogram of codes loses nothing and its size does not
depend on the tensor. `shift` low bits of a code may be dropped: a cell then holds 2^shift codes.
Cells of numbers that are greater than all of a batch are left out: often more than half of them.
"""

from collections.abc import Iterable
from functools import cache
from typing import Any

import numpy as np
from attrs import field, frozen
from numpy.typing import NDArray

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
    half, wide = CODES // 2 >> into.shift, into.upto.shape[2]
    size = max(PIECE, FULL * (half + wide))  # codes that the processor's cache holds
    counts = None
    for codes, weights in blocks:
        flat, heavy = codes.reshape(-1), None if weights is None else weights.reshape(-1)
        for start in range(0, len(flat), size):
            some = None if heavy is None else heavy[start : start + size]
            part = _counted(flat[start : start + size], some, into.shift, half + wide)
            counts = part if counts is None else np.add(counts, part, out=counts)
    if counts is None:
        message = "a group has at least one weight"
        raise ValueError(message)
    # An int32 is the lower half of an int64: to read it there is quicker than to convert it.
    narrow = into.upto.dtype == np.int32
    whole: NDArray[Any] = counts.view(np.int32)[::2] if narrow else counts
    for sign, part in enumerate((whole[:wide], whole[half:])):
        np.add.accumulate(part, out=into.upto[at, sign])


def _counted(codes: Codes, weights: Weights | None, shift: int, cells: int) -> Index:
    """The mass of each cell. In float32 it is exact if none is too large, for a sum grows."""
    import torch

    # Without its lowest bit a code is positive as an int16 too.
    index = torch.from_numpy((codes >> shift).view(np.int16) if shift else codes.astype(np.int32))
    if weights is None:
        return torch.bincount(index, minlength=cells).numpy()
    heavy = torch.from_numpy(weights)
    found = torch.bincount(index, heavy, minlength=cells)
    if found.dtype == torch.float32 and found.max() >= WHOLE:
        found = torch.bincount(index, heavy.double(), minlength=cells)
    return found.long().numpy()


@cache
def cell_values(shift: int) -> Floats:
    """The mean of the fp16 numbers in each cell; infinities and NaNs, which never count, are 0."""
    codes = np.arange(CODES, dtype=np.uint16).view(np.float16).astype(np.float64)
    codes[~np.isfinite(codes)] = 0.0
    means: Floats = codes.reshape(-1, 1 << shift).mean(1)
    means.flags.writeable = False  # everyone gets the same array
    return means
