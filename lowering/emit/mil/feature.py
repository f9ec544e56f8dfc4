"""Emitters of what stands between our layout of features and a host's."""

from topoc.lowering.emit.mil.environment import Environment, emits
from topoc.lowering.emit.mil.var import Var
from topoc.lowering.ops.feature import FromTokens, Greatest, Keep, ToTokens, View


@emits(FromTokens)
def from_tokens(op: FromTokens, env: Environment) -> Var:
    """Channels before tokens, then an axis of one between them."""
    swapped = env.op("transpose", part="channels", x=env[op.x], perm=(0, 2, 1))
    return env.op("expand_dims", x=swapped, axes=(2,))


@emits(ToTokens)
def to_tokens(op: ToTokens, env: Environment) -> Var:
    """Without the axis of one, tokens before channels."""
    flat = env.op("squeeze", part="flat", x=env[op.x], axes=(2,))
    return env.op("transpose", x=flat, perm=(0, 2, 1))


@emits(View)
def view(op: View, env: Environment) -> Var:
    """A reshape."""
    return env.op("reshape", x=env[op.x], shape=op.shape)


@emits(Greatest)
def greatest(op: Greatest, env: Environment) -> Var:
    """A maximum over channels."""
    return env.op("reduce_max", x=env[op.x], axes=(1,), keep_dims=True)


@emits(Keep)
def keep(op: Keep, env: Environment) -> Var:
    """An identity, or the input would not be one."""
    return env.op("identity", x=env[op.x])
