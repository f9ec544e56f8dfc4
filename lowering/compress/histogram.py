"""How often each fp16 number stands in each group: all that clustering needs to know of a tensor.

An fp16 number has 65,536 codes, so that a histogram of codes loses nothing and its size does not
depend on the tensor. `shift` low bits of a code may be dropped: a cell then holds 2^shift codes.
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

CODES = 1 << 16
INFINITE = 0x7C00  # the first code that is no number; the sign bit is apart
PIECE, FULL = 1 << 16, 4  # codes that are counted at once, at least; and for each cell
UNIT = 1024  # the mean weight as a whole number, so that sums are exact in any order


@frozen
class Histogram:
    """The mass of each group in all cells up to each one, in the order of codes.

    Running sums are made while a group's counts are still in the processor's cache, and are what
    bins are cut from. Mass is a count, int32, or a sum of whole weights, float64.
    """

    upto: NDArray[Any] = field(repr=False)  # [groups, 65536 >> shift]
    shift: int

    @property
    def groups(self) -> int:
        """How many groups there are."""
        return len(self.upto)

    def of(self, groups: Index) -> "Histogram":
        """The histograms of some of the groups."""
        return Histogram(self.upto[groups], self.shift)

    def total(self) -> Floats:
        """The mass of each cell in all groups together: [cells]."""
        summed = self.upto.sum(0, dtype=self.upto.dtype)  # may wrap, and differences back
        total: Floats = np.diff(summed, prepend=summed.dtype.type(0)).astype(np.float64)
        return total

    def is_finite(self) -> bool:
        """Whether no infinity and no NaN was counted."""
        half = self.upto.shape[1] // 2
        last = INFINITE // (1 << self.shift) - 1
        return all(
            bool((self.upto[:, at + last] == self.upto[:, at + half - 1]).all()) for at in (0, half)
        )


def empty(groups: int, shift: int, *, weighted: bool) -> Histogram:
    """A histogram whose groups are still to be filled."""
    kind = np.float64 if weighted else np.int32
    return Histogram(np.empty((groups, CODES >> shift), kind), shift)


def fill(into: Histogram, at: int, blocks: Iterable[tuple[Codes, Floats | None]]) -> None:
    """Count the codes of a group, in any shape; weights are whole numbers of that shape."""
    import torch

    counts = None
    for codes, weights in blocks:
        for part in _counts(codes.reshape(-1), weights, into.shift):
            counts = part if counts is None else counts.add_(part)
    if counts is None:
        message = "a group has at least one weight"
        raise ValueError(message)
    torch.from_numpy(into.upto[at]).copy_(counts.cumsum_(0))


def _counts(codes: Codes, weights: Floats | None, shift: int) -> "Iterator[torch.Tensor]":
    """The mass of each cell, for a piece after another that the processor's cache holds."""
    import torch

    cells = CODES >> shift
    size = max(PIECE, FULL * cells)
    flat = None if weights is None else torch.from_numpy(weights.reshape(-1))
    for start in range(0, len(codes), size):
        part = codes[start : start + size]
        # Without its lowest bit a code is positive as an int16 too.
        index = (part >> shift).view(np.int16) if shift else part.astype(np.int32)
        some = None if flat is None else flat[start : start + size]
        yield torch.bincount(torch.from_numpy(index), some, minlength=cells)


@cache
def cell_values(shift: int) -> Floats:
    """The mean of the fp16 numbers in each cell; infinities and NaNs, which never count, are 0."""
    codes = np.arange(CODES, dtype=np.uint16).view(np.float16).astype(np.float64)
    codes[~np.isfinite(codes)] = 0.0
    means: Floats = codes.reshape(-1, 1 << shift).mean(1)
    means.flags.writeable = False  # everyone gets the same array
    return means
