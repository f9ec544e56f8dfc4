"""A compressed weight: the constants that one of Core ML's decompressing ops is fed with."""

from math import inf, log10, prod
from typing import Any

import numpy as np
from attrs import field, frozen
from numpy.typing import NDArray

from topoc.lowering.compress.layout import at_rank
from topoc.lowering.compress.packing import packed_bytes, unpack
from topoc.lowering.compress.recipe import Recipe

BITS = {"int4": 4, **{f"uint{bits}": bits for bits in (1, 2, 3, 4, 6)}}
HELD = {"fp16": "<f2", "int8": "int8", "uint8": "uint8", "int4": "int8"}


@frozen
class Part:
    """One constant, as its bytes stand in a weight file."""

    dtype: str  # MIL's name
    shape: tuple[int, ...]
    data: NDArray[np.uint8] = field(repr=False)

    def at_rank(self, rank: int) -> tuple[int, ...]:
        """The shape where the weight is no matrix but has axes of one behind: a convolution's."""
        return at_rank(self.shape, rank)

    def array(self) -> NDArray[Any]:
        """The values, sub-byte ones in whole bytes."""
        return self.values(0, prod(self.shape)).reshape(self.shape)

    def rows(self, start: int, stop: int) -> NDArray[Any]:
        """The values of some places along the first axis."""
        each = prod(self.shape[1:])
        found = self.values(start * each, stop * each)
        return found.reshape(stop - start, *self.shape[1:])

    def values(self, start: int, stop: int) -> NDArray[Any]:
        """Some of the values, in one row."""
        held = np.dtype(HELD.get(self.dtype, "uint8"))
        if self.dtype not in BITS:
            return self.data.view(held)[start:stop]
        bits, before = BITS[self.dtype], start % 8  # eight values begin with a byte
        begin, end = (start - before) * bits // 8, packed_bytes(bits, stop)
        values = unpack(self.data[begin:end], bits, stop - start + before)[before:]
        if held == np.int8:
            sign = np.uint8(1 << (bits - 1))
            return (values ^ sign).view(np.int8) - np.int8(sign)
        return values


def size_of(dtype: str, shape: tuple[int, ...]) -> int:
    """The bytes of a constant."""
    count = prod(shape)
    if dtype in BITS:
        return packed_bytes(BITS[dtype], count)
    return count * np.dtype(HELD[dtype]).itemsize


def part(dtype: str, values: NDArray[Any]) -> Part:
    """A constant of whole-byte values."""
    held = np.ascontiguousarray(values, HELD[dtype])
    return Part(dtype, values.shape, held.reshape(-1).view(np.uint8))


@frozen
class Damage:
    """Squared sums of a weight and of its error; also with each column counted by its input."""

    signal: float
    noise: float
    output: float  # Σ w² · E[x²], the power of the output if inputs were independent
    output_noise: float

    @property
    def sqnr(self) -> float:
        """The signal over its error, in decibels; infinity where nothing was lost."""
        if self.noise == 0.0:
            return inf
        return 10.0 * log10(self.signal / self.noise) if self.signal else -inf

    @property
    def output_error(self) -> float:
        """The error of the output over its power, 0 to about 1."""
        return self.output_noise / self.output if self.output else 0.0


@frozen
class Compressed:
    """The constants of one weight [rows, columns], by the names of the op's parameters.

    Shapes are those of a matrix; trailing axes of size one may be put behind the first two.
    The first axis of the constants is longer than `rows` where the last group was padded.
    """

    recipe: Recipe
    rows: int
    parts: dict[str, Part]
    damage: Damage | None = field(default=None, eq=False)  # what was measured when it was made

    @property
    def bytes(self) -> int:
        """What all constants need."""
        return sum(len(one.data) for one in self.parts.values())

    @property
    def columns(self) -> int:
        """The width of the weight."""
        first = next(iter(self.parts.values()))
        return first.shape[1]
