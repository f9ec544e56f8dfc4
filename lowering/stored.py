"""Checkpoint tensors on their way into a package: recipe applied, rounded, written once."""

from collections.abc import Callable, Iterator
from errno import EIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from attrs import define, evolve, field, frozen
from numpy.typing import NDArray

from topoc.dsl.diagnostic import Place, TopocError, error
from topoc.lowering.checkpoint.weights import Weights
from topoc.lowering.hashed import Buffer, Sink
from topoc.lowering.ir import DType, Weight
from topoc.lowering.reuse import Reuse
from topoc.lowering.threads import one_thread

if TYPE_CHECKING:
    import torch

COPY_BLOCK = 16 << 20
SMALL = 1 << 20  # bytes
HELD = {DType.FP16: "<f2", DType.FP32: "<f4"}


def rounded(weights: Weights, weight: Weight) -> "Iterator[torch.Tensor]":
    """(stored + offset) * factor in float32, then rounded to the element type, block by block."""
    import torch

    dtype = torch.float16 if weight.type.dtype is DType.FP16 else torch.float32
    plain = weight.offset == 0.0 and weight.factor == 1.0
    for block in weights.blocks(weight.role, fp16=dtype is torch.float16, run=_run(weight)):
        if plain:  # what `blocks` has judged needs no second look
            yield block.to(dtype)
            continue
        values = scaled(block, weight).to(dtype)
        if not torch.isfinite(values).all():
            raise _overflow(weights, weight)
        yield values


def _streamed(weights: Weights, weight: Weight) -> Iterator[memoryview]:
    with one_thread():
        for block in rounded(weights, weight):
            yield block.numpy().data


def scaled(block: "torch.Tensor", weight: Weight) -> "torch.Tensor":
    """(stored + offset) * factor, in float32."""
    if weight.offset == 0.0 and weight.factor == 1.0:
        return block
    return (block + weight.offset) * weight.factor


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
    told: Callable[[int], None]  # bytes that are written
    reuse: Reuse = field(factory=lambda: Reuse(""))
    written: dict[RoundedKey, Extent] = field(factory=dict)

    def append_to(self, file: Sink, path: Path, weight: Weight) -> None:
        """Append the values of a weight to an open file of this path."""
        start, extent = file.tell(), self._extent(weight)
        if extent is not None:
            self._copy(extent, file)
        else:
            for block in self._blocks(weight):
                file.write(block)
            extent = Extent(path, start, file.tell() - start)
            self.written[weight.key, weight.type.dtype] = extent
        self.told(weight.type.bytes)

    def stands(self, path: Path, weight: Weight) -> None:
        """A file of this path is the values of a weight."""
        if self._extent(weight) is None:
            self.written[weight.key, weight.type.dtype] = Extent(path, 0, weight.type.bytes)
            self.told(weight.type.bytes)

    def values(self, weight: Weight) -> NDArray[Any]:
        """The values of a weight that is small enough to hold."""
        self.told(weight.type.bytes)
        kind = np.dtype(HELD[weight.type.dtype])
        found: NDArray[Any] = np.frombuffer(b"".join(self._blocks(weight)), kind)
        return found.reshape(weight.type.shape)

    def _blocks(self, weight: Weight) -> Iterator[Buffer]:
        """The rounded values; those of small weights, as gains are, are kept for other compiles.

        Large ones would take their space twice, and who has any to write reads them anyway.
        """
        if weight.type.bytes > SMALL or self.reuse.cache is None:
            yield from _streamed(self.weights, weight)
            return
        names, offsets, dtype = self.weights.names, self.weights.offsets, weight.type.dtype
        decides = (names[weight.role], offsets[weight.role], weight.type.shape, dtype.value)
        yield self.reuse.values(
            weight.key, "rounded", decides, lambda: b"".join(_streamed(self.weights, weight))
        )

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

    def _copy(self, extent: Extent, file: Sink) -> None:
        file.flush()  # the extent may lie in the same file
        with extent.path.open("rb") as source:
            source.seek(extent.offset)
            left = extent.bytes
            while left:
                block = source.read(min(left, COPY_BLOCK))
                if not block:
                    raise OSError(EIO, "the file became shorter", str(extent.path))
                file.write(block)
                left -= len(block)
