"""Checkpoint tensors on their way into a package: recipe applied, rounded, written once."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import torch
from attrs import define, evolve, field, frozen

from topoc.dsl.diagnostic import Place, TopocError, error
from topoc.lowering.checkpoint.weights import Weights
from topoc.lowering.ir import DType, Weight
from topoc.lowering.package import BlobWriter

COPY_BLOCK = 16 << 20
NAMES = {DType.FP16: "float16", DType.FP32: "float32"}
TORCH = {DType.FP16: torch.float16, DType.FP32: torch.float32}


def rounded(weights: Weights, weight: Weight) -> Iterator[torch.Tensor]:
    """(stored + offset) * factor in float32, then rounded to the element type, block by block."""
    dtype = weight.type.dtype
    plain = weight.offset == 0.0 and weight.factor == 1.0
    for block in weights.blocks(weight.role, fp16=dtype is DType.FP16, run=_run(weight)):
        if plain:  # what `blocks` has judged needs no second look
            yield block.to(TORCH[dtype])
            continue
        values = ((block + weight.offset) * weight.factor).to(TORCH[dtype])
        if not torch.isfinite(values).all():
            raise _overflow(weights, weight)
        yield values


def _run(weight: Weight) -> tuple[int, int] | None:
    """The rows that a weight is, unless it is all of them."""
    if weight.first is None:
        return None
    return weight.first, weight.first + weight.type.shape[0]


def _overflow(weights: Weights, weight: Weight) -> TopocError:
    name = weights.names[weight.role]
    words = f"`{name}` leaves fp16 as {weight.key}"
    place = Place(str(weights.reader.path), name)
    return TopocError(
        error("checkpoint.beyond-fp16", words, place, help="build with --precision fp32")
    )


@frozen
class Extent:
    """Where a file holds the rounded values of a weight."""

    path: Path
    offset: int
    bytes: int


RoundedKey = tuple[str, DType]
"""A weight's key and its element type."""


@define
class Rounded:
    """The rounded values of weights, made once: what was written before is copied from there."""

    weights: Weights
    told: Callable[[Weight], None]
    written: dict[RoundedKey, Extent] = field(factory=dict)

    def append_to(self, file: BinaryIO, path: Path, weight: Weight) -> None:
        """Append the values of a weight to an open file of this path."""
        start, extent = file.tell(), self._extent(weight)
        if extent is not None:
            self._copy(extent, file)
        else:
            file.writelines(block.numpy().data for block in rounded(self.weights, weight))
            extent = Extent(path, start, file.tell() - start)
            self.written[weight.key, weight.type.dtype] = extent
        self.told(weight)

    def values(self, weight: Weight) -> torch.Tensor:
        """The values of a weight that is small enough to hold."""
        self.told(weight)
        return torch.cat(list(rounded(self.weights, weight)))

    def _extent(self, weight: Weight) -> Extent | None:
        """Where the values stand already, by themselves or among all rows of the tensor."""
        dtype = weight.type.dtype
        found = self.written.get((weight.key, dtype))
        if found is not None or weight.first is None:
            return found
        whole = self.written.get((evolve(weight, first=None).key, dtype))
        if whole is None:
            return None
        row = weight.type.bytes // weight.type.shape[0]
        return Extent(whole.path, whole.offset + weight.first * row, weight.type.bytes)

    def _copy(self, extent: Extent, file: BinaryIO) -> None:
        file.flush()  # the extent may lie in the same file
        with extent.path.open("rb") as source:
            source.seek(extent.offset)
            left = extent.bytes
            while left:
                block = source.read(min(left, COPY_BLOCK))
                file.write(block)
                left -= len(block)


@define
class PackageSink:
    """Writes each constant of a package once."""

    rounded: Rounded
    blob: BlobWriter
    _offsets: dict[object, int] = field(factory=dict)

    def weight(self, weight: Weight, layout: str) -> int:
        """The record of a checkpoint tensor; layouts of the same bytes share it."""
        repeats = 2 if layout == "twice" else 1
        key = (weight.key, weight.type.dtype, repeats)
        if key not in self._offsets:
            kind = NAMES[weight.type.dtype]
            self._offsets[key] = self.blob.begin(kind, repeats * weight.type.bytes)
            for _ in range(repeats):
                self.rounded.append_to(self.blob.file, self.blob.path, weight)
        return self._offsets[key]

    def values(self, weight: Weight, layout: str) -> np.ndarray[Any, Any]:
        """The values of a checkpoint tensor of a few elements."""
        values = self.rounded.values(weight).numpy()
        return np.tile(values, 2) if layout == "twice" else values

    def literal(self, value: np.ndarray[Any, Any]) -> int:
        """The record of an array."""
        offset = self.blob.begin(value.dtype.name, value.nbytes)
        self.blob.file.write(np.ascontiguousarray(value).data)
        return offset
