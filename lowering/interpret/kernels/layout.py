"""Ops that move values about and compute none."""

import torch
import torch.nn.functional as F  # noqa: N812 - torch's own name for it

from topoc.lowering.interpret.kernels.kernel import Bound, Call, kernel, refusal


@kernel("reshape", "expand_dims", "squeeze")
def reshape(call: Call) -> Bound:
    """The same values in the declared shape, which all three of these ops come to."""
    shape = call.shape
    return call.bind(lambda x: x.reshape(shape), "x")


@kernel("transpose")
def transpose(call: Call) -> Bound:
    """The axes in another order."""
    order = call.fixed("perm")
    return call.bind(lambda x: x.permute(order), "x")


@kernel("concat")
def concat(call: Call) -> Bound:
    """Several tensors one after another along an axis."""
    axis = call.fixed("axis")
    if call.fixed("interleave", default=False):
        raise refusal(call, "with `interleave`")
    return Bound(lambda *parts: torch.cat(parts, axis), call.operands("values"))


@kernel("stack")
def stack(call: Call) -> Bound:
    """Several tensors one after another along a new axis."""
    axis = call.fixed("axis")
    return Bound(lambda *parts: torch.stack(parts, axis), call.operands("values"))


@kernel("split")
def split(call: Call) -> Bound:
    """One tensor in parts along an axis; the declared shapes say how large each is."""
    axis = call.fixed("axis")
    sizes = [part.shape[axis] for part in call.op.outputs]
    return call.bind(lambda x: torch.split(x, sizes, axis), "x")


@kernel("tile")
def tile(call: Call) -> Bound:
    """The tensor repeated along its axes."""
    times = call.fixed("reps")
    return call.bind(lambda x: torch.tile(x, times), "x")


@kernel("pad")
def pad(call: Call) -> Bound:
    """The tensor with a constant around its last axes, two widths for each, in their order."""
    if (mode := call.fixed("mode", "constant")) != "constant":
        raise refusal(call, f"of mode `{mode}`")
    widths, value = call.fixed("pad"), call.fixed("constant_val", 0.0)
    pairs = [widths[at : at + 2] for at in range(0, len(widths), 2)]
    innermost_first = [width for pair in reversed(pairs) for width in pair]
    return call.bind(lambda x: F.pad(x, innermost_first, value=value), "x")
