"""Ops that pick by index."""

import torch

from topoc.lowering.interpret.kernels.kernel import Bound, Call, kernel, refusal


@kernel("gather")
def gather(call: Call) -> Bound:
    """Slices of a tensor along an axis by their places; those below zero count from its end."""
    if call.fixed("batch_dims", 0):
        raise refusal(call, "with `batch_dims`")
    shape, axis = call.shape, call.fixed("axis", 0)

    def pick(x: torch.Tensor, indices: torch.Tensor) -> torch.Tensor:
        flat = indices.reshape(-1)
        wrapped = torch.where(flat < 0, flat + x.shape[axis], flat)
        return torch.index_select(x, axis, wrapped).reshape(shape)

    return call.bind(pick, "x", "indices")
