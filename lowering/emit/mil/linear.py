"""Emitters of projections."""

from topoc.lowering.emit.mil.constexpr import matrix
from topoc.lowering.emit.mil.environment import Environment, emits
from topoc.lowering.emit.mil.var import Var
from topoc.lowering.ops.linear import Embed, Linear


@emits(Linear)
def linear(op: Linear, env: Environment) -> Var:
    """A 1×1 convolution: with channels second it needs no transpose around it.

    A compressed weight may have more rows than it should, which pad its last group: what they
    make is cut off behind.
    """
    size, weight = op.result_type().shape, matrix(op.weight, env)
    padded = weight.shape[0] > size[1]
    made = env.op(
        "conv",
        part="padded" if padded else "",
        x=env[op.x],
        weight=weight,
        strides=(1, 1),
        pad_type="valid",
        pad=(0, 0, 0, 0),
        dilations=(1, 1),
        groups=1,
    )
    return env.op("slice_by_size", x=made, begin=(0, 0, 0, 0), size=size) if padded else made


@emits(Embed)
def embed(op: Embed, env: Environment) -> Var:
    """A gather of rows, turned so that channels stand second."""
    table = env.weight(op.table, "plain")
    rows = env.op(
        "gather",
        part="rows",
        x=table,
        indices=env[op.tokens],
        axis=0,
        batch_dims=0,
        validate_indices=False,
    )
    columns = env.op("transpose", part="columns", x=rows, perm=(0, 2, 1))
    return env.op("expand_dims", x=columns, axes=(2,))
