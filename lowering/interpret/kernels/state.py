"""States: values that outlive a run, and live in slots of their own meanwhile."""

import torch

from topoc.lowering.interpret.kernels.kernel import Bound, Call, kernel


@kernel("read_state")
def read_state(call: Call) -> Bound:
    """What the state holds now; nothing later changes a value that was read."""
    return call.bind(_same, "input")


@kernel("write_state")
def write_state(call: Call) -> Bound:
    """Let the state hold another value."""
    return Bound(_same, (call.operand("data"),), call.operand("input"))


def _same(value: torch.Tensor) -> torch.Tensor:
    return value
