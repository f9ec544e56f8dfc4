"""Ops between floats and integers of eight bits; weights that are stored so are constants."""

from typing import Any

import torch

from topoc.lowering.interpret.kernels.kernel import Bound, Call, kernel, refusal

RANGES = {"int8": (-128.0, 127.0), "uint8": (0.0, 255.0)}


@kernel("quantize")
def quantize(call: Call) -> Bound:
    """Whole steps of a scale, half to even, from a zero point, kept inside the integer type.

    Where the result is declared as a float, the steps stay as they are: see `Machine`.
    """
    (lowest, highest), shift = RANGES[call.fixed("output_dtype")], _along(call, "zero_point")
    scale, whole = _along(call, "scale"), call.op.outputs[0].dtype in RANGES

    def steps(x: torch.Tensor) -> torch.Tensor:
        found = x / scale
        found = (found.round() if whole else found) + shift
        found = found.clamp(lowest, highest)
        return found.nan_to_num().int() if whole else found  # no integer is a NaN

    return call.bind(steps, "input")


@kernel("dequantize", arithmetic=True)
def dequantize(call: Call) -> Bound:
    """Steps from a zero point, times their scale."""
    scale, shift = _along(call, "scale"), _along(call, "zero_point")
    return call.bind(lambda x: (x - shift) * scale, "input")


def _along(call: Call, name: str) -> torch.Tensor:
    """A number, or one for each place of an axis; zero where it is left out."""
    found = torch.tensor(call.fixed(name, 0.0), dtype=torch.float32)
    if not found.ndim:
        return found
    if not call.has("axis"):
        raise refusal(call, f"with several `{name}` and no `axis`")
    shape: list[Any] = [1] * len(call.shape)
    shape[call.fixed("axis")] = len(found)
    return found.reshape(shape)
