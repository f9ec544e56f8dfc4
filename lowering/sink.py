"""Where the constants of a package go: its weight file, each constant once."""

from collections.abc import Callable
from math import prod
from typing import Any

import numpy as np
from attrs import define, field

from topoc.lowering.compress.parts import Compressed, Part
from topoc.lowering.emit.mil.environment import Placed
from topoc.lowering.ir import DType, Weight
from topoc.lowering.package import BlobWriter
from topoc.lowering.stored import Rounded

NAMES = {DType.FP16: "float16", DType.FP32: "float32"}


def _none(weight: Weight) -> Compressed:
    message = f"{weight.key} has a recipe, and nothing compresses it here"
    raise LookupError(message)


@define
class PackageSink:
    """Writes each constant of a package once."""

    rounded: Rounded
    blob: BlobWriter
    compressed: Callable[[Weight], Compressed] = _none
    _offsets: dict[object, int] = field(factory=dict)
    _held: tuple[Weight, Compressed] | None = None  # the last one: its parts are asked for in turn

    def weight(self, placed: Placed) -> int:
        """The record of a checkpoint tensor or part; layouts of the same bytes share it."""
        weight, repeats = placed.weight, 2 if placed.layout == "twice" else 1
        key = (weight.key, weight.type.dtype, repeats, placed.recipe, placed.part)
        if key not in self._offsets:
            write = self._write if placed.recipe is None else self._write_part
            self._offsets[key] = write(placed, repeats)
        return self._offsets[key]

    def values(self, placed: Placed) -> np.ndarray[Any, Any]:
        """The values of a constant of a few elements."""
        if placed.recipe is not None:
            return self._part(placed).array()
        values = self.rounded.values(placed.weight).numpy()
        return np.tile(values, 2) if placed.layout == "twice" else values

    def literal(self, value: np.ndarray[Any, Any]) -> int:
        """The record of an array."""
        offset = self.blob.begin(value.dtype.name, value.nbytes)
        self.blob.file.write(np.ascontiguousarray(value).data)
        return offset

    def _write(self, placed: Placed, repeats: int) -> int:
        weight = placed.weight
        offset = self.blob.begin(NAMES[weight.type.dtype], repeats * weight.type.bytes)
        for _ in range(repeats):
            self.rounded.append_to(self.blob.file, self.blob.path, weight)
        return offset

    def _write_part(self, placed: Placed, _: int) -> int:
        part = self._part(placed)
        dtype = "float16" if part.dtype == "fp16" else part.dtype
        offset = self.blob.begin(dtype, len(part.data), prod(part.shape))
        self.blob.file.write(part.data.data)
        self.rounded.told(len(part.data))
        return offset

    def _part(self, placed: Placed) -> Part:
        if self._held is None or self._held[0] != placed.weight:
            self._held = (placed.weight, self.compressed(placed.weight))
        return self._held[1].parts[placed.part]
