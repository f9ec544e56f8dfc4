"""Emitters of what goes between channels and heads."""

from topoc.lowering.emit.mil.environment import Environment, emits
from topoc.lowering.emit.mil.var import Var
from topoc.lowering.ops.heads import (
    Channels,
    JoinChannels,
    JoinHeads,
    MergeHeads,
    Rope,
    SplitHeads,
    TokenRows,
)


@emits(SplitHeads)
def split_heads(op: SplitHeads, env: Environment) -> Var:
    """Channels are heads times width already: a reshape."""
    return env.op("reshape", x=env[op.x], shape=op.result_type().shape)


@emits(TokenRows)
def token_rows(op: TokenRows, env: Environment) -> Var:
    """Swap the last two axes."""
    return env.op("transpose", x=env[op.x], perm=(0, 1, 3, 2))


@emits(MergeHeads)
def merge_heads(op: MergeHeads, env: Environment) -> Var:
    """Width before tokens again, then a reshape."""
    columns = env.op("transpose", part="columns", x=env[op.x], perm=(0, 1, 3, 2))
    return env.op("reshape", x=columns, shape=op.result_type().shape)


@emits(JoinHeads)
def join_heads(op: JoinHeads, env: Environment) -> Var:
    """Heads times width are channels already: a reshape."""
    return env.op("reshape", x=env[op.x], shape=op.result_type().shape)


@emits(Channels)
def channels(op: Channels, env: Environment) -> Var:
    """A slice."""
    begin, size = (0, op.first, 0, 0), op.result_type().shape
    return env.op("slice_by_size", x=env[op.x], begin=begin, size=size)


@emits(JoinChannels)
def join_channels(op: JoinChannels, env: Environment) -> Var:
    """Parts one after another on the channel axis."""
    parts = [env[part] for part in op.parts]
    if len(parts) == 1:
        return env.op("identity", x=parts[0])
    return env.op("concat", values=parts, axis=1, interleave=False)


@emits(Rope)
def rope(op: Rope, env: Environment) -> Var:
    """X cos + [-second half, first half] sin; cosines and sines are inputs, never gathers."""
    x, (one, heads, width, tokens) = env[op.x], op.x.shape
    size = (one, heads, width // 2, tokens)
    first = env.op("slice_by_size", part="first", x=x, begin=(0, 0, 0, 0), size=size)
    second = env.op("slice_by_size", part="second", x=x, begin=(0, 0, width // 2, 0), size=size)
    turned = env.op("mul", part="turned", x=second, y=-1.0)
    halves = env.op("concat", part="halves", values=[turned, first], axis=2, interleave=False)
    straight = env.op("mul", part="straight", x=x, y=env[op.cos])
    across = env.op("mul", part="across", x=halves, y=env[op.sin])
    return env.op("add", x=straight, y=across)
