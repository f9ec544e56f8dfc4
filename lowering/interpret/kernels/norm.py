"""Normalisations along axes."""

import torch
import torch.nn.functional as F  # noqa: N812 - torch's own name for it

from topoc.lowering.interpret.kernels.kernel import Bound, Call, kernel

SMALLEST_NORMAL = torch.finfo(torch.float32).tiny


@kernel("layer_norm", arithmetic=True)
def layer_norm(call: Call) -> Bound:
    """Mean zero and variance one over some axes, then a gain and a shift over the same axes."""
    shape = call.shape
    axes = [axis % len(shape) for axis in call.fixed("axes", list(range(len(shape))))]
    epsilon = float(call.fixed("epsilon", 1e-5))
    order = [axis for axis in range(len(shape)) if axis not in axes] + axes
    back = [order.index(axis) for axis in range(len(shape))]
    sizes = [shape[axis] for axis in axes]
    given = [name for name in ("gamma", "beta") if call.has(name)]

    def normalise(x: torch.Tensor, *parameters: torch.Tensor) -> torch.Tensor:
        by_name = dict(zip(given, parameters, strict=True))
        last = F.layer_norm(
            x.permute(order), sizes, by_name.get("gamma"), by_name.get("beta"), epsilon
        )
        return last.permute(back)

    return call.bind(normalise, "x", *given)


@kernel("softmax", arithmetic=True)
def softmax(call: Call) -> Bound:
    """Exponentials that add up to one along an axis.

    Weights that fp32 can only hold as subnormals become zero. On x86 a product with subnormal
    operands was measured a hundred times slower than the same product without.
    """
    axis = call.fixed("axis", -1)
    return call.bind(lambda x: F.threshold(torch.softmax(x, axis), SMALLEST_NORMAL, 0.0), "x")
