"""Emitters of arithmetic."""

from topoc.lowering.emit.mil.environment import Environment, emits
from topoc.lowering.emit.mil.var import Var
from topoc.lowering.ops.elementwise import Activation, Add, Copy, Mul, Scale, ScaleBy, Softcap


@emits(Add)
def add(op: Add, env: Environment) -> Var:
    """One op for one op."""
    return env.op("add", x=env[op.x], y=env[op.y])


@emits(Mul)
def mul(op: Mul, env: Environment) -> Var:
    """One op for one op."""
    return env.op("mul", x=env[op.x], y=env[op.y])


@emits(Copy)
def copy(op: Copy, env: Environment) -> Var:
    """The operand under another name."""
    return env.op("identity", x=env[op.x])


@emits(Scale)
def scale(op: Scale, env: Environment) -> Var:
    """A product with a scalar constant."""
    return env.op("mul", x=env[op.x], y=op.factor)


@emits(ScaleBy)
def scale_by(op: ScaleBy, env: Environment) -> Var:
    """A product with a weight of one element, which every axis shares."""
    return env.op("mul", x=env[op.x], y=env.weight(op.factor, "plain"))


@emits(Activation)
def activation(op: Activation, env: Environment) -> Var:
    """GELU's tanh form is one op with a mode; SiLU is one op."""
    if op.kind == "silu":
        return env.op("silu", x=env[op.x])
    return env.op("gelu", x=env[op.x], mode="TANH_APPROXIMATION")


@emits(Softcap)
def softcap(op: Softcap, env: Environment) -> Var:
    """Divide, bound, multiply; the division is a product with the reciprocal."""
    inner = env.op("mul", part="inner", x=env[op.x], y=1.0 / op.cap)
    bounded = env.op("tanh", part="bounded", x=inner)
    return env.op("mul", x=bounded, y=op.cap)
