"""The decoder's own vocabulary: every op that a program may hold."""

from topoc.lowering.ir import Op
from topoc.lowering.ops.attention import Attention
from topoc.lowering.ops.cache import (
    AppendRows,
    BlendIn,
    CacheRow,
    PadRow,
    ShiftIn,
    StackRows,
)
from topoc.lowering.ops.elementwise import Activation, Add, Mul, Scale, Softcap
from topoc.lowering.ops.head import Argmax, SelectToken, TopK
from topoc.lowering.ops.heads import MergeHeads, Rope, SplitHeads, TokenRows
from topoc.lowering.ops.linear import Embed, Linear
from topoc.lowering.ops.norm import RmsNorm

ALL_OPS: tuple[type[Op], ...] = (
    # in the order in which a decoder meets them
    Embed, Scale, RmsNorm, Linear, SplitHeads, Rope, TokenRows,
    CacheRow, ShiftIn, BlendIn, AppendRows, PadRow, Attention, MergeHeads,
    Add, Activation, Mul, StackRows, SelectToken, Softcap, Argmax, TopK,
)  # fmt: skip

__all__ = ["ALL_OPS"]
