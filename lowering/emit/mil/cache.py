"""Emitters of KV caches: slices and concatenations, never scatters."""

from typing import Any

import numpy as np

from topoc.lowering.emit.mil.environment import NUMPY, Environment, emits
from topoc.lowering.ops.cache import (
    AppendRows,
    BlendIn,
    CacheRow,
    PadRow,
    ShiftIn,
    StackRows,
)


@emits(CacheRow)
def cache_row(op: CacheRow, env: Environment) -> Any:
    """A slice, also where it is the whole cache: an output may not be an input."""
    size = op.result_type().shape
    return env.op("slice_by_size", x=env[op.cache], begin=(op.row, 0, 0, 0), size=size)


@emits(PadRow)
def pad_row(op: PadRow, env: Environment) -> Any:
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
def shift_in(op: ShiftIn, env: Environment) -> Any:
    """All slots but the first, then the new row; where there is one slot, the new row alone."""
    one, heads, slots, width = op.cache.shape
    if slots == 1:
        return env.op("identity", x=env[op.new])
    newest = env.op(
        "slice_by_size",
        part="newest",
        x=env[op.cache],
        begin=(0, 0, 1, 0),
        size=(one, heads, slots - 1, width),
    )
    return env.op("concat", values=[newest, env[op.new]], axis=2, interleave=False)


@emits(BlendIn)
def blend_in(op: BlendIn, env: Environment) -> Any:
    """The one-hot column takes the new row in and leaves the others as they are."""
    slot = env[op.slot]
    others = env.op("sub", part="others", x=1.0, y=slot)
    kept = env.op("mul", part="kept", x=env[op.cache], y=others)
    placed = env.op("mul", part="placed", x=env[op.new], y=slot)
    return env.op("add", x=kept, y=placed)


@emits(AppendRows)
def append_rows(op: AppendRows, env: Environment) -> Any:
    """The call's rows after the cache's slots."""
    return env.op("concat", values=[env[op.cache], env[op.new]], axis=2, interleave=False)


@emits(StackRows)
def stack_rows(op: StackRows, env: Environment) -> Any:
    """Layers one after another on the first axis."""
    rows = [env[row] for row in op.rows]
    if len(rows) == 1:
        return env.op("identity", x=rows[0])
    return env.op("concat", values=rows, axis=0, interleave=False)
