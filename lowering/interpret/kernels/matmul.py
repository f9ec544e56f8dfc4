"""Matrix products."""

import torch
import torch.nn.functional as F  # noqa: N812 - torch's own name for it

from topoc.lowering.interpret.kernels.kernel import Bound, Call, Compute, kernel


@kernel("matmul", arithmetic=True)
def matmul(call: Call) -> Bound:
    """A product over the last two axes, either operand transposed first; the others broadcast."""
    first = call.fixed("transpose_x", default=False)
    second = call.fixed("transpose_y", default=False)
    forms: dict[tuple[bool, bool], Compute] = {
        (False, False): torch.matmul,
        (False, True): lambda x, y: torch.matmul(x, y.transpose(-1, -2)),
        (True, False): lambda x, y: torch.matmul(x.transpose(-1, -2), y),
        (True, True): lambda x, y: torch.matmul(x.transpose(-1, -2), y.transpose(-1, -2)),
    }
    return call.bind(forms[first, second], "x", "y")


@kernel("linear", arithmetic=True)
def linear(call: Call) -> Bound:
    """The last axis times a matrix of (outputs, inputs), and a bias."""
    return call.bind(F.linear, "x", "weight", *(["bias"] if call.has("bias") else []))
