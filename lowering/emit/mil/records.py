"""Where the constants of a package will lie in its weight file: their sizes alone say it.

So a program is emitted without reading a weight, and what rules look at is what is shipped.
"""

from math import prod
from typing import Any

import numpy as np
from attrs import define, field, frozen

from topoc.lowering.compress.layout import constants, size
from topoc.lowering.emit.mil.var import NUMPY, Literal, Placed, stored_shape
from topoc.lowering.package import after, begins

NAMES = {np.dtype(np.float16): "float16", np.dtype(np.float32): "float32"}

Content = Placed | np.ndarray[Any, Any]


@frozen
class Record:
    """One constant: a checkpoint tensor, a part of a compressed one, or an array."""

    content: Content = field(repr=False)
    dtype: str  # as weight files name it
    bytes: int
    count: int  # of values
    offset: int


@define
class Records:
    """The records of a weight file, in order; what has the same bytes has one."""

    all: list[Record] = field(factory=list)
    _offsets: dict[object, int] = field(factory=dict)
    _end: int = field(factory=begins)

    def weight(self, placed: Placed) -> int:
        """The offset of a weight, or of a part of a compressed one."""
        weight, repeats = placed.weight, 2 if placed.layout == "twice" else 1
        key = (weight.key, weight.type.dtype, repeats, placed.recipe, placed.part)
        if key not in self._offsets:
            self._offsets[key] = self._add(placed, *_sized(placed))
        return self._offsets[key]

    def literal(self, literal: Literal) -> int:
        """The offset of an array."""
        if literal not in self._offsets:
            value = literal.array
            self._offsets[literal] = self._add(value, value.dtype.name, value.nbytes, value.size)
        return self._offsets[literal]

    def _add(self, content: Content, dtype: str, nbytes: int, count: int) -> int:
        offset = self._end
        self.all.append(Record(content, dtype, nbytes, count, offset))
        self._end = after(offset, nbytes)
        return offset


def _sized(placed: Placed) -> tuple[str, int, int]:
    """The type of a weight's record, its bytes and how many values it holds."""
    if placed.recipe is None:
        kind = np.dtype(NUMPY[placed.weight.type.dtype])
        count = prod(stored_shape(placed.weight.type.shape, placed.layout))
        return NAMES[kind], count * kind.itemsize, count
    constant = constants(placed.recipe, placed.weight.type.shape)[placed.part]
    dtype, shape = constant
    return "float16" if dtype == "fp16" else dtype, size(constant), prod(shape)
