"""A compressed weight: the constants that one of Core ML's decompressing ops is fed with."""

from collections.abc import Callable
from typing import Any

import numpy as np
from attrs import field, frozen
from numpy.typing import NDArray

from topoc.lowering.compress.packing import packed_bytes, unpack
from topoc.lowering.compress.recipe import Recipe

BITS = {"int4": 4, **{f"uint{bits}": bits for bits in (1, 2, 3, 4, 6)}}
HELD = {"fp16": "<f2", "int8": "int8", "uint8": "uint8", "int4": "int8"}
Allocate = Callable[[str, int], NDArray[np.uint8]]
"""Gives memory for a constant's name and bytes: the process's own, or that of a file."""


def in_memory(name: str, size: int) -> NDArray[np.uint8]:
    """Memory of this process."""
    del name
    return np.empty(size, np.uint8)


@frozen
class Part:
    """One constant, as its bytes stand in a weight file."""

    dtype: str  # MIL's name
    shape: tuple[int, ...]
    data: NDArray[np.uint8] = field(repr=False)

    def array(self) -> NDArray[Any]:
        """The values, sub-byte ones in whole bytes."""
        held = np.dtype(HELD.get(self.dtype, "uint8"))
        if self.dtype not in BITS:
            return self.data.view(held).reshape(self.shape)
        bits = BITS[self.dtype]
        values = unpack(self.data, bits, int(np.prod(self.shape)))
        if held == np.int8:
            sign = np.uint8(1 << (bits - 1))
            values = (values ^ sign).view(np.int8) - np.int8(sign)
        return values.reshape(self.shape)


def size_of(dtype: str, shape: tuple[int, ...]) -> int:
    """The bytes of a constant."""
    count = int(np.prod(shape))
    if dtype in BITS:
        return packed_bytes(BITS[dtype], count)
    return count * np.dtype(HELD[dtype]).itemsize


def part(dtype: str, values: NDArray[Any]) -> Part:
    """A constant of whole-byte values."""
    held = np.ascontiguousarray(values, HELD[dtype])
    return Part(dtype, values.shape, held.reshape(-1).view(np.uint8))


@frozen
class Compressed:
    """The constants of one weight [rows, columns], by the names of the op's parameters.

    Shapes are those of a matrix; trailing axes of size one may be put behind the first two.
    The first axis of the constants is longer than `rows` where the last group was padded.
    """

    recipe: Recipe
    rows: int
    parts: dict[str, Part]

    @property
    def bytes(self) -> int:
        """What all constants need."""
        return sum(len(one.data) for one in self.parts.values())
