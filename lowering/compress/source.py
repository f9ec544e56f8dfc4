"""Weights on their way to a recipe: delivered by rows, as often as they are asked for."""

from collections.abc import Iterator
from hashlib import sha256
from typing import TYPE_CHECKING, Protocol

import numpy as np
from attrs import field, frozen

from topoc.dsl.diagnostic import Place, TopocError, error
from topoc.lowering.compress.histogram import Codes

if TYPE_CHECKING:
    import torch

BLOCK = 1 << 20  # weights that are read at once; more leave the processor's caches, and the heap


class Source(Protocol):
    """A matrix [output channels, input channels] that can be read by rows, again and again."""

    @property
    def name(self) -> str:
        """What messages call it."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Output and input channels; other ranks are refused."""

    def rows(self, start: int, stop: int) -> "torch.Tensor":
        """Some rows as float32 or float16: [stop - start, input channels]."""


@frozen
class Held:
    """A matrix in memory as a source."""

    name: str
    values: "torch.Tensor" = field(repr=False)

    @property
    def shape(self) -> tuple[int, ...]:
        """Output and input channels."""
        return tuple(self.values.shape)

    def rows(self, start: int, stop: int) -> "torch.Tensor":
        """Some rows, as they are."""
        return self.values[start:stop]


def spans(start: int, stop: int, columns: int) -> Iterator[tuple[int, int]]:
    """The rows from start to stop, in runs of at most `BLOCK` weights or one row."""
    tall = max(1, BLOCK // columns)
    for at in range(start, stop, tall):
        yield at, min(at + tall, stop)


def codes(source: Source, start: int, stop: int) -> Codes:
    """Some rows as the codes of fp16 numbers, of infinities too."""
    rows = source.rows(start, stop)
    found: Codes = rows.half().contiguous().numpy().view(np.uint16)
    return found


def unfit(source: Source, start: int, stop: int) -> TopocError:
    """The error that names the first of some rows' values which fp16 can't hold."""
    import torch

    for at, end in spans(start, stop, source.shape[1]):
        rows = source.rows(at, end)
        wild = ~torch.isfinite(rows.half())
        if not wild.any():
            continue
        row, column = (int(one) for one in wild.nonzero()[0])
        value = float(rows[row, column])
        where = f"`{source.name}` holds {value:g} at [{at + row}, {column}]"
        if np.isfinite(value):
            message, help_ = f"{where}, which is beyond fp16", "rescale the weights"
            return TopocError(error("checkpoint.beyond-fp16", message, _place(source), help=help_))
        message, help_ = f"{where}", "look at the tool that wrote the checkpoint"
        return TopocError(error("checkpoint.not-finite", message, _place(source), help=help_))
    message = f"rows {start} to {stop} of {source.name} are finite"
    raise ValueError(message)


def _place(source: Source) -> Place:
    return Place(source.name)


def content(source: Source) -> str:
    """The SHA-256 of a source's shape and fp16 numbers; what the cache knows it by."""
    digest = sha256(repr(source.shape).encode())
    for start, stop in spans(0, *source.shape):
        digest.update(codes(source, start, stop).data)
    return digest.hexdigest()
