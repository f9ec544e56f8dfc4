"""Ops that treat every element alike."""

from collections.abc import Callable
from functools import partial

import torch
import torch.nn.functional as F  # noqa: N812 - torch's own name for it

from topoc.lowering.interpret.kernels.kernel import Bound, Call, Compute, kernel, refusal

BINARY: dict[str, Compute] = {
    "add": torch.add,
    "sub": torch.sub,
    "mul": torch.mul,
    "maximum": torch.maximum,
    "minimum": torch.minimum,
    "pow": torch.pow,
    "real_div": torch.true_divide,
    "floor_div": torch.floor_divide,
    "mod": torch.remainder,
}
COMPARISONS: dict[str, Compute] = {
    "equal": torch.eq,
    "not_equal": torch.ne,
    "greater": torch.gt,
    "greater_equal": torch.ge,
    "less": torch.lt,
    "less_equal": torch.le,
    "logical_and": torch.logical_and,
    "logical_or": torch.logical_or,
    "logical_xor": torch.logical_xor,
}
UNARY: dict[str, Compute] = {
    "exp": torch.exp,
    "exp2": torch.exp2,
    "sqrt": torch.sqrt,
    "square": torch.square,
    "sin": torch.sin,
    "cos": torch.cos,
    "erf": torch.erf,
    "tanh": torch.tanh,
    "sigmoid": torch.sigmoid,
    "silu": F.silu,
    "softplus": F.softplus,
}
EXACT: dict[str, Compute] = {  # results are representable whenever the operands are
    "abs": torch.abs,
    "ceil": torch.ceil,
    "floor": torch.floor,
    "logical_not": torch.logical_not,
    "relu": torch.relu,
    "sign": torch.sign,
}
CASTS = {"fp16": torch.float32, "fp32": torch.float32, "int32": torch.int32, "bool": torch.bool}


@kernel(*BINARY, arithmetic=True)
def binary(call: Call) -> Bound:
    """Arithmetic on two operands, which broadcast."""
    if call.op.type == "real_div" and call.op.outputs[0].dtype not in {"fp16", "fp32"}:
        raise refusal(call, "of integers")
    return call.bind(BINARY[call.op.type], "x", "y")


@kernel(*COMPARISONS)
def comparison(call: Call) -> Bound:
    """Truth values of two operands, which broadcast."""
    return call.bind(COMPARISONS[call.op.type], "x", "y")


@kernel(*UNARY, arithmetic=True)
def unary(call: Call) -> Bound:
    """A function of one operand."""
    return call.bind(UNARY[call.op.type], "x")


@kernel(*EXACT)
def exact(call: Call) -> Bound:
    """A function of one operand whose results need no rounding."""
    return call.bind(EXACT[call.op.type], "x")


@kernel("identity")
def identity(call: Call) -> Bound:
    """The operand under another name."""
    return call.bind(lambda x: x, "x")


@kernel("rsqrt", "log", "inverse", arithmetic=True)
def guarded(call: Call) -> Bound:
    """Functions with an epsilon that keeps their operand off zero."""
    functions: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
        "rsqrt": torch.rsqrt,
        "log": torch.log,
        "inverse": torch.reciprocal,
    }
    function, epsilon = functions[call.op.type], call.fixed("epsilon")
    return call.bind(lambda x: function(x + epsilon), "x")


@kernel("gelu", arithmetic=True)
def gelu(call: Call) -> Bound:
    """The Gaussian error unit, exact or by one of two approximations."""
    modes: dict[str, Compute] = {
        "EXACT": F.gelu,
        "TANH_APPROXIMATION": partial(F.gelu, approximate="tanh"),
        "SIGMOID_APPROXIMATION": lambda x: x * torch.sigmoid(1.702 * x),
    }
    mode = call.fixed("mode", "EXACT")
    if mode not in modes:
        raise refusal(call, f"of mode `{mode}`")
    return call.bind(modes[mode], "x")


@kernel("clip")
def clip(call: Call) -> Bound:
    """The operand kept between two bounds."""
    lowest, highest = call.fixed("alpha"), call.fixed("beta")
    return call.bind(lambda x: torch.clamp(x, lowest, highest), "x")


@kernel("cast", arithmetic=True)
def cast(call: Call) -> Bound:
    """The operand in another data type; to integers towards zero."""
    to = call.fixed("dtype")
    if to not in CASTS:
        raise refusal(call, f"to `{to}`")
    dtype = CASTS[to]
    return call.bind(lambda x: x.to(dtype), "x")


@kernel("select")
def select(call: Call) -> Bound:
    """Of two operands the first where the condition holds, the second elsewhere."""
    return call.bind(torch.where, "cond", "a", "b")
