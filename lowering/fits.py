"""Whether the operands of an op fit each other, for the ops where it doesn't follow from types.

The builder of MIL would broadcast, or cut, without a word.
"""

from collections.abc import Callable, Mapping
from math import prod
from typing import Any, Final

from topoc.lowering.ir import DType, Op
from topoc.lowering.ops.attention import Attention, TiledAttention
from topoc.lowering.ops.cache import AppendRows, BlendIn, ShiftIn, StateRow, WriteState
from topoc.lowering.ops.elementwise import ScaleBy
from topoc.lowering.ops.heads import Channels, JoinChannels

Shape = tuple[int, ...]


def _state_row(op: StateRow) -> bool:
    return _within((op.row, 0, 0, 0), (1, op.heads, op.slots, op.width), op.state.shape)


def _write_state(op: WriteState) -> bool:
    index = [(one.type.dtype, one.shape) for one in op.index]
    return (
        _within((op.row, 0, 0, 0), op.new.shape, op.state.shape)
        and index in ([], [(DType.INT32, (1,))])
        and op.new.type.dtype is op.state.type.dtype
    )


def _rows(op: ShiftIn | AppendRows | BlendIn) -> bool:
    return _alike(op.cache.shape, op.new.shape, but=2)


def _blend_in(op: BlendIn) -> bool:
    return _rows(op) and op.slot.shape == (1, 1, op.cache.shape[2], op.new.shape[2])


def _attention(op: Attention | TiledAttention) -> bool:
    (_, heads, tokens, width), (one, groups, slots, _) = op.q.shape, op.k.shape
    return (
        heads % groups == 0
        and op.k.shape == op.v.shape == (one, groups, slots, width)
        and op.mask.shape == (1, 1, tokens, slots)
    )


def _tiled_attention(op: TiledAttention) -> bool:
    return op.tile > 0 and _attention(op)


def _channels(op: Channels) -> bool:
    _, channels, height, tokens = op.x.shape
    return _within(
        (0, op.first, 0, 0), (1, op.count, height, tokens), (1, channels, height, tokens)
    )


def _join_channels(op: JoinChannels) -> bool:
    return all(_alike(op.parts[0].shape, part.shape, but=1) for part in op.parts)


def _within(begin: Shape, size: Shape, whole: Shape) -> bool:
    cuts = zip(begin, size, whole, strict=True)
    return all(at >= 0 and count > 0 and at + count <= of for at, count, of in cuts)


def _alike(shape: Shape, other: Shape, *, but: int) -> bool:
    """Whether two shapes agree on every axis but one."""
    return len(shape) == len(other) and all(
        axis == but or one == two for axis, (one, two) in enumerate(zip(shape, other, strict=True))
    )


FITS: Final[Mapping[type[Op], Callable[[Any], bool]]] = {
    StateRow: _state_row,
    WriteState: _write_state,
    ShiftIn: _rows,
    BlendIn: _blend_in,
    AppendRows: _rows,
    Attention: _attention,
    TiledAttention: _tiled_attention,
    ScaleBy: lambda op: prod(op.factor.type.shape) == 1,
    Channels: _channels,
    JoinChannels: _join_channels,
}
"""The rule of each op that has one; types of results are derived and need none."""
