"""Ops that take or replace a part of a tensor."""

from collections.abc import Callable, Sequence

import torch
from attrs import frozen

from topoc.dsl.diagnostic import TopocError, error
from topoc.lowering.interpret.kernels.kernel import Bound, Call, kernel, refusal

Index = tuple[slice | int, ...]


@frozen
class Slicer:
    """The parameters of a slice that are always fixed."""

    stride: Sequence[int]
    begin_mask: Sequence[bool]
    end_mask: Sequence[bool]
    squeeze_mask: Sequence[bool]

    def index(self, begin: Sequence[int], end: Sequence[int]) -> Index:
        """What to index a tensor by, once the bounds are known."""
        return tuple(self._along(axis, begin[axis], end[axis]) for axis in range(len(begin)))

    def _along(self, axis: int, begin: int, end: int) -> slice | int:
        if self.squeeze_mask[axis]:
            return 0 if self.begin_mask[axis] else begin
        first = None if self.begin_mask[axis] else begin
        last = None if self.end_mask[axis] else end
        return slice(first, last, self.stride[axis])


def _slicer(call: Call, rank: int) -> Slicer:
    slicer = Slicer(
        call.fixed("stride", [1] * rank),
        call.fixed("begin_mask", [False] * rank),
        call.fixed("end_mask", [False] * rank),
        call.fixed("squeeze_mask", [False] * rank),
    )
    if min(slicer.stride, default=1) < 1:
        raise refusal(call, "with a stride below one")
    return slicer


def _bounds(call: Call) -> Callable[[torch.Tensor, torch.Tensor], Index]:
    """The index from both bounds, computed beforehand where both are constants."""
    fixed = call.is_fixed("begin") and call.is_fixed("end")
    if not fixed:
        slicer = _slicer(call, len(call.shape_of("x")))
        return lambda begin, end: slicer.index(begin.tolist(), end.tolist())
    begin, end = call.fixed("begin"), call.fixed("end")
    index = _slicer(call, len(begin)).index(begin, end)
    return lambda _begin, _end: index


@kernel("slice_by_index")
def slice_by_index(call: Call) -> Bound:
    """A part between bounds, as Python slices, with masks that lift bounds or drop axes."""
    index = _bounds(call)
    return call.bind(lambda x, begin, end: x[index(begin, end)], "x", "begin", "end")


@kernel("slice_update")
def slice_update(call: Call) -> Bound:
    """The tensor with a part between bounds replaced, which must lie inside it."""
    index = _bounds(call)

    def replace(
        x: torch.Tensor, update: torch.Tensor, begin: torch.Tensor, end: torch.Tensor
    ) -> torch.Tensor:
        fresh = x.clone()
        part = fresh[index(begin, end)]
        if part.shape != update.shape:  # torch would let an empty part swallow a row
            raise _outside(call, begin, end)
        part.copy_(update)
        return fresh

    return call.bind(replace, "x", "update", "begin", "end")


def _outside(call: Call, begin: torch.Tensor, end: torch.Tensor) -> TopocError:
    message = f"`{call.op.name}` replaces {begin.tolist()} to {end.tolist()} of {call.shape}"
    remedy = "call at a position whose slots lie within the cache"
    return TopocError(error("run.slice-outside", message, call.place, help=remedy))


@kernel("slice_by_size")
def slice_by_size(call: Call) -> Bound:
    """A part by where it begins and how large the result is declared."""
    sizes, whole = call.shape, call.shape_of("x")
    if not call.is_fixed("begin"):
        return call.bind(lambda x, begin: x[_from(begin.tolist(), sizes, whole)], "x", "begin")
    index = _from(call.fixed("begin"), sizes, whole)
    cut = [axis for axis, size in enumerate(sizes) if size != whole[axis]]
    if len(cut) != 1:
        return call.bind(lambda x: x[index], "x")
    # Narrowing one axis takes a third of the time of indexing all of them.
    axis = cut[0]
    first, size = index[axis].start, sizes[axis]
    return call.bind(lambda x: x.narrow(axis, first, size), "x")


def _from(begin: Sequence[int], sizes: Sequence[int], shape: Sequence[int]) -> tuple[slice, ...]:
    firsts = [at + whole if at < 0 else at for at, whole in zip(begin, shape, strict=True)]
    return tuple(slice(at, at + size) for at, size in zip(firsts, sizes, strict=True))
