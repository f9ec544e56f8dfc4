"""A checkpoint bound to an architecture: weights by role, in row blocks, checked as they stream."""

from collections.abc import Iterator, Mapping
from math import inf
from typing import TYPE_CHECKING

from attrs import field, frozen

from topoc.dsl.diagnostic import Place, TopocError, error
from topoc.lowering.architecture import Architecture, TensorSpec
from topoc.lowering.checkpoint.reader import Reader

if TYPE_CHECKING:
    import torch

BLOCK = 4 << 20  # bytes of float32; larger ones leave the processor's caches, and the heap
FP16_OVERFLOW = 65520.0  # from here on, rounding to fp16 gives infinity


@frozen
class Weights:
    """The tensors of one architecture, wherever and however they are stored."""

    reader: Reader = field(repr=False)
    architecture: Architecture = field(repr=False)
    names: Mapping[str, str] = field(repr=False)  # role to stored name
    offsets: Mapping[str, float] = field(repr=False)  # what storage adds to a role's values
    ignored: tuple[str, ...] = field(default=(), repr=False)  # stored, and no use for them
    notices: tuple[str, ...] = ()

    def spec(self, role: str) -> TensorSpec:
        """The tensor of this role."""
        for one in self.architecture.tensors:
            if one.role == role:
                return one
        raise KeyError(role)

    def rows(self, role: str, start: int, stop: int) -> "torch.Tensor":
        """Some rows as float32, every one of them finite."""
        values = self._read(role, start, stop)
        if not _within(values, inf):
            self._judge(role, [_worst(values)], fp16=False)
        return values

    def blocks(
        self,
        role: str,
        limit_bytes: int = BLOCK,
        *,
        fp16: bool = False,
        run: tuple[int, int] | None = None,
    ) -> "Iterator[torch.Tensor]":
        """All rows, or a run of them, as float32, in blocks.

        After a value that cannot be used the rest is counted.
        """
        shape = self.spec(role).shape
        first, last = run or (0, shape[0])
        tall = max(1, limit_bytes // (4 * (shape[1] if len(shape) > 1 else 1)))
        limit = FP16_OVERFLOW if fp16 else inf
        found: list[tuple[int, int, float]] = []
        for start in range(first, last, tall):
            values = self._read(role, start, min(start + tall, last))
            if found or not _within(values, limit):
                found.append(_worst(values))
            else:
                yield values
        self._judge(role, found, fp16=fp16)

    def vector(self, role: str) -> "torch.Tensor":
        """A whole tensor as float32; meant for gains."""
        return self.rows(role, 0, self.spec(role).shape[0])

    def _read(self, role: str, start: int, stop: int) -> "torch.Tensor":
        height = self.spec(role).shape[0]
        if not 0 <= start < stop <= height:
            message = f"rows {start} to {stop} of {role}, which has {height}"
            raise IndexError(message)
        values = self.reader.rows(self.names[role], start, stop)
        offset = self.offsets[role]
        return values - offset if offset else values

    def _judge(self, role: str, blocks: list[tuple[int, int, float]], *, fp16: bool) -> None:
        """Raise for values that are not numbers, or that fp16 cannot hold."""
        name = self.names[role]
        place = Place(str(self.reader.path), name)
        wild = sum(count for count, _, _ in blocks)
        large = sum(count for _, count, _ in blocks)
        if wild:
            found = f"`{name}` holds {_values(wild)} not finite"
            raise TopocError(error("checkpoint.not-finite", found, place))
        if fp16 and large:
            most = max(size for _, _, size in blocks)
            found = f"`{name}` holds {_values(large)} beyond fp16, the largest {most:g}"
            way = "build with --precision fp32, or rescale the weights"
            raise TopocError(error("checkpoint.beyond-fp16", found, place, help=way))


def _within(values: "torch.Tensor", limit: float) -> bool:
    """Whether all values are numbers smaller than a limit; one pass, the usual case."""
    import torch

    low, high = torch.aminmax(values)  # NaN comes out of it
    return bool(low > -limit) and bool(high < limit)


def _worst(values: "torch.Tensor") -> tuple[int, int, float]:
    """How many values are not finite, how many are beyond fp16, and the largest finite size."""
    import torch

    finite = torch.isfinite(values)
    sizes = torch.where(finite, values, 0).abs()
    wild = values.numel() - int(finite.sum())
    return wild, int((sizes >= FP16_OVERFLOW).sum()), float(sizes.max())


def _values(count: int) -> str:
    return "1 value that is" if count == 1 else f"{count} values that are"
