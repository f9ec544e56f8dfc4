"""The decoder's own vocabulary: every op that a program may hold."""

from topoc.lowering.ir import Op
from topoc.lowering.ops.attention import Attention, TiledAttention
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
from topoc.lowering.ops.elementwise import Activation, Add, Copy, Mul, Scale, ScaleBy, Softcap
from topoc.lowering.ops.feature import FromTokens, Greatest, Keep, ToTokens, View
from topoc.lowering.ops.head import Argmax, SelectToken, TopK
from topoc.lowering.ops.heads import (
    Channels,
    JoinChannels,
    JoinHeads,
    MergeHeads,
    Rope,
    SplitHeads,
    TokenRows,
)
from topoc.lowering.ops.linear import Embed, Linear
from topoc.lowering.ops.norm import RmsNorm, UnitRmsNorm
from topoc.lowering.ops.quantize import QuantizeDequantize

ALL_OPS: tuple[type[Op], ...] = (
    # in the order in which a decoder meets them
    Embed, Scale, RmsNorm, QuantizeDequantize, Linear, SplitHeads, JoinHeads, UnitRmsNorm, Rope,
    TokenRows,
    CacheRow, ShiftIn, BlendIn, AppendRows, PadRow, StateRow, WriteState,
    Attention, TiledAttention, MergeHeads, Add, Activation, Mul, Channels, ScaleBy,
    StackRows, Copy, SelectToken, JoinChannels, Softcap, Argmax, TopK,
    FromTokens, ToTokens, View, Greatest, Keep,
)  # fmt: skip

__all__ = ["ALL_OPS"]
