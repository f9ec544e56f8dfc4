"""Emitters of KV caches: slices, updates of slices and concatenations, never scatters."""

import numpy as np
from attrs import evolve

from topoc.lowering.emit.mil.environment import STATE, Environment, emits
from topoc.lowering.emit.mil.var import NUMPY, Var
from topoc.lowering.ir import Value
from topoc.lowering.ops.cache import (
    AppendRows,
    BlendIn,
    CacheRow,
    PadRow,
    ShiftIn,
    StackRows,
    StateRow,
    WriteState,
)


@emits(CacheRow)
def cache_row(op: CacheRow, env: Environment) -> Var:
    """A slice, also where it is the whole cache: an output may not be an input."""
    size = op.result_type().shape
    return env.op("slice_by_size", x=env[op.cache], begin=(op.row, 0, 0, 0), size=size)


@emits(StateRow)
def state_row(op: StateRow, env: Environment) -> Var:
    """A slice of what the state holds now."""
    held, size = _held(op.state, env), op.result_type().shape
    begin = (op.row, 0, 0, 0)
    if op.state.type.dtype is STATE:
        return env.op("slice_by_size", x=held, begin=begin, size=size)
    stored = env.op("slice_by_size", part="stored", x=held, begin=begin, size=size)
    return env.op("cast", x=stored, dtype=op.state.type.dtype.value)


@emits(WriteState)
def write_state(op: WriteState, env: Environment) -> Var:
    """Replace a slice of what the state holds, and let the state hold that.

    The result is a fresh read: what was read before the write would be stale.
    """
    value = env[op.new]
    if op.new.type.dtype is not STATE:
        value = env.op("cast", part="stored", x=value, dtype=STATE.value)
    if op.index or op.new.shape != op.state.shape:
        begin, end = _bounds(op, env)
        held = _held(op.state, env)
        value = env.op("slice_update", part="updated", x=held, update=value, begin=begin, end=end)
    state = _state(env[op.state])
    return evolve(env.op("coreml_update_state", state=state, value=value), held=state)


def _bounds(
    op: WriteState, env: Environment
) -> tuple[Var | tuple[int, ...], Var | tuple[int, ...]]:
    """Where a write begins and ends; vars where the slot is an input."""
    if not op.index:
        begin = (op.row, 0, 0, 0)
        return begin, tuple(at + size for at, size in zip(begin, op.new.shape, strict=True))
    (index,) = op.index
    parts = [env.constant((op.row, 0)), env[index], env.constant((0,))]
    first = env.op("concat", part="begin", values=parts, axis=0, interleave=False)
    return first, env.op("add", part="end", x=first, y=op.new.shape)


def _held(state: Value, env: Environment) -> Var:
    """What a state holds now: read where it is first needed, then known until the next write."""
    var = env[state]
    if var.type.state:
        env.vars[state] = evolve(env.op("read_state", part="held", input=var), held=var)
    return env[state]


def _state(var: Var) -> Var:
    """The state itself, from it or from what was read from it."""
    return var.held or var


@emits(PadRow)
def pad_row(op: PadRow, env: Environment) -> Var:
    """Zeros joined to the width, then to the heads."""
    x, (one, heads, slots, width) = env[op.x], op.x.shape
    kind = NUMPY[op.x.type.dtype]
    if op.width > width:
        zeros = env.constant(np.zeros((one, heads, slots, op.width - width), kind))
        x = env.op("concat", part="wide", values=[x, zeros], axis=3, interleave=False)
    if op.heads > heads:
        zeros = env.constant(np.zeros((one, op.heads - heads, slots, op.width), kind))
        x = env.op("concat", part="tall", values=[x, zeros], axis=1, interleave=False)
    return env.op("identity", x=x)


@emits(ShiftIn)
def shift_in(op: ShiftIn, env: Environment) -> Var:
    """The slots that stay, then the new rows.

    Where none stays, the last slots of both: an input that nothing reads is none of Core ML's.
    """
    one, heads, slots, width = op.cache.shape
    cache, new, tokens = env[op.cache], env[op.new], op.new.shape[2]
    if tokens >= slots:
        both = env.op("concat", part="both", values=[cache, new], axis=2, interleave=False)
        return env.op("slice_by_size", x=both, begin=(0, 0, tokens, 0), size=op.cache.shape)
    newest = env.op(
        "slice_by_size",
        part="newest",
        x=cache,
        begin=(0, 0, tokens, 0),
        size=(one, heads, slots - tokens, width),
    )
    return env.op("concat", values=[newest, new], axis=2, interleave=False)


@emits(BlendIn)
def blend_in(op: BlendIn, env: Environment) -> Var:
    """One-hot columns take the new rows in and leave the other slots as they are.

    A product with one column is elementwise; with several, each slot sums one row and zeros.
    """
    slot, new = env[op.slot], env[op.new]
    if op.new.shape[2] == 1:
        taken, placed = slot, env.op("mul", part="placed", x=new, y=slot)
    else:
        taken = env.op("reduce_sum", part="taken", x=slot, axes=(3,), keep_dims=True)
        placed = env.op(
            "matmul", part="placed", x=slot, y=new, transpose_x=False, transpose_y=False
        )
    others = env.op("sub", part="others", x=1.0, y=taken)
    kept = env.op("mul", part="kept", x=env[op.cache], y=others)
    return env.op("add", x=kept, y=placed)


@emits(AppendRows)
def append_rows(op: AppendRows, env: Environment) -> Var:
    """The call's rows after the cache's slots."""
    return env.op("concat", values=[env[op.cache], env[op.new]], axis=2, interleave=False)


@emits(StackRows)
def stack_rows(op: StackRows, env: Environment) -> Var:
    """Layers one after another on the first axis."""
    rows = [env[row] for row in op.rows]
    if len(rows) == 1:
        return env.op("identity", x=rows[0])
    return env.op("concat", values=rows, axis=0, interleave=False)
