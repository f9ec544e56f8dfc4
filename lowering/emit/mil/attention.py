"""The emitter of attention."""

from typing import Any

from topoc.lowering.emit.mil.environment import Environment, emits
from topoc.lowering.ops.attention import Attention


@emits(Attention)
def attention(op: Attention, env: Environment) -> Any:
    """Grouped queries without a fifth axis: the query heads of one KV head become its rows.

    Heads (1, G * R, T, D) and (1, G, R * T, D) hold the same elements in the same order, so KV
    heads are never repeated; the mask, which all heads share, is added where heads stand alone.
    """
    _, heads, tokens, width = op.q.shape
    _, groups, slots, _ = op.k.shape
    rows = heads // groups * tokens
    q = env.op("reshape", part="q", x=env[op.q], shape=(1, groups, rows, width))
    scores = env.op("matmul", part="scores", x=q, y=env[op.k], transpose_x=False, transpose_y=True)
    if op.scale != 1.0:
        scores = env.op("mul", part="scaled", x=scores, y=op.scale)
    scores = env.op("reshape", part="by_head", x=scores, shape=(1, heads, tokens, slots))
    masked = env.op("add", part="masked", x=scores, y=env[op.mask])
    weights = env.op("softmax", part="weights", x=masked, axis=-1)
    weights = env.op("reshape", part="by_group", x=weights, shape=(1, groups, rows, slots))
    mixed = env.op(
        "matmul", part="mixed", x=weights, y=env[op.v], transpose_x=False, transpose_y=False
    )
    return env.op("reshape", x=mixed, shape=op.result_type().shape)
