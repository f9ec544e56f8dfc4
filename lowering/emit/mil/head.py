"""Emitters of the head."""

from topoc.lowering.emit.mil.environment import Environment, emits
from topoc.lowering.emit.mil.var import Var
from topoc.lowering.ops.head import Argmax, SelectToken, TopK


@emits(SelectToken)
def select_token(op: SelectToken, env: Environment) -> Var:
    """A one-hot product and its sum: exact, and no gather."""
    chosen = env.op("mul", part="chosen", x=env[op.x], y=env[op.selector])
    return env.op("reduce_sum", x=chosen, axes=(3,), keep_dims=True)


@emits(Argmax)
def argmax(op: Argmax, env: Environment) -> Var:
    """One op, with an int32 result."""
    return env.op("reduce_argmax", x=env[op.x], axis=1, keep_dims=True, output_dtype="int32")


@emits(TopK)
def topk(op: TopK, env: Environment) -> list[Var]:
    """One op with two results."""
    return env.ops(
        "topk",
        x=env[op.x],
        k=op.k,
        axis=1,
        ascending=False,
        sort=True,
        return_indices=True,
        output_indices_dtype="int32",
    )
