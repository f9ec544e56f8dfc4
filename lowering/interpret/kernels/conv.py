"""Convolution; over single points it is a matrix product."""

from collections.abc import Sequence

import torch
import torch.nn.functional as F  # noqa: N812 - torch's own name for it

from topoc.lowering.interpret.kernels.kernel import Bound, Call, Compute, kernel, refusal

CONVOLUTIONS: dict[int, Compute] = {3: F.conv1d, 4: F.conv2d, 5: F.conv3d}


@kernel("conv", arithmetic=True)
def conv(call: Call) -> Bound:
    """Convolution over one to three spatial axes, channels second."""
    rank, kernel_shape = len(call.shape), call.shape_of("weight")[2:]
    if rank not in CONVOLUTIONS:
        raise refusal(call, f"of rank {rank}")
    strides = call.fixed("strides", [1] * (rank - 2))
    dilations = call.fixed("dilations", [1] * (rank - 2))
    groups = call.fixed("groups", 1)
    pads = _pads(call, kernel_shape, strides, dilations)
    names = ("x", "weight", "bias") if call.has("bias") else ("x", "weight")
    if groups == 1 and not any(pads) and {*kernel_shape, *strides} == {1}:
        return call.bind(_pointwise(call.shape), *names)
    convolve = CONVOLUTIONS[rank]

    def padded(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> object:
        return convolve(F.pad(x, pads), weight, bias, strides, 0, dilations, groups)

    return call.bind(padded, *names)


def _pointwise(shape: tuple[int, ...]) -> Compute:
    """One product of the weight and the points as columns: twice as fast as a convolution."""
    batch, outputs = shape[:2]

    def single(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> object:
        matrix, columns = weight.view(outputs, -1), x.reshape(x.shape[1], -1)
        if bias is None:
            return torch.mm(matrix, columns).view(shape)
        return torch.addmm(bias[:, None], matrix, columns).view(shape)

    def many(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> object:
        product = weight.view(outputs, -1) @ x.flatten(2)
        return (product if bias is None else product + bias[:, None]).view(shape)

    return single if batch == 1 else many


def _pads(
    call: Call, kernel_shape: Sequence[int], strides: Sequence[int], dilations: Sequence[int]
) -> list[int]:
    """Widths before and after each spatial axis, the innermost first as torch wants them."""
    kind, axes = call.fixed("pad_type", "valid"), range(len(kernel_shape))
    if kind == "valid":
        pairs = [(0, 0) for _ in axes]
    elif kind == "custom":
        widths = call.fixed("pad")
        pairs = [(widths[2 * axis], widths[2 * axis + 1]) for axis in axes]
    elif kind in {"same", "same_lower"}:
        sizes, spans = call.shape_of("x")[2:], zip(kernel_shape, dilations, strict=True)
        reaches = [(size - 1) * dilation + 1 for size, dilation in spans]
        lacks = [
            max(0, (-(-size // stride) - 1) * stride + reach - size)
            for size, stride, reach in zip(sizes, strides, reaches, strict=True)
        ]
        pairs = [(lack // 2, lack - lack // 2) for lack in lacks]
        pairs = [pair[::-1] for pair in pairs] if kind == "same_lower" else pairs
    else:
        raise refusal(call, f"with padding `{kind}`")
    return [width for pair in reversed(pairs) for width in pair]
