"""What each op means, in plain torch: the definition that emitters are tested against.

It also runs whole programs, to measure a checkpoint's ranges before anything is emitted.
"""

from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812  # torch's own custom

from topoc.lowering.ir import Op, Program, Value, Weight
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

Tensor = torch.Tensor
Fetch = Callable[[Weight], Tensor]
Get = Callable[[Any], Tensor]
"""The tensor of an operand or of a weight."""


def evaluate(program: Program, inputs: Mapping[Value, Tensor], fetch: Fetch) -> dict[Value, Tensor]:
    """Every value of a program, in the precision of its inputs and weights."""
    values = dict(inputs)

    def get(name: Value | Weight) -> Tensor:
        return values[name] if isinstance(name, Value) else fetch(name)

    for binding in program.bindings:
        results = meaning(binding.op, get)
        values.update(zip(binding.results, results, strict=True))
    return values


def meaning(op: Op, get: Get) -> tuple[Tensor, ...]:
    """The results of one op."""
    result = MEANINGS[type(op)](op, get)
    return result if isinstance(result, tuple) else (result,)


def _rms_norm(op: RmsNorm, get: Get) -> Tensor:
    x = get(op.x)
    shape = [1] * x.ndim
    shape[op.axis] = -1
    return _unit_rms_norm(op, get) * get(op.gain).reshape(shape)


def _unit_rms_norm(op: RmsNorm | UnitRmsNorm, get: Get) -> Tensor:
    x = get(op.x)
    return x * torch.rsqrt(x.square().mean(op.axis, keepdim=True) + op.eps)


def _linear(op: Linear, get: Get) -> Tensor:
    return torch.einsum("oi,bihw->bohw", get(op.weight), get(op.x))


def _embed(op: Embed, get: Get) -> Tensor:
    return get(op.table)[get(op.tokens).long()].transpose(1, 2).unsqueeze(2)


def _activation(op: Activation, get: Get) -> Tensor:
    x = get(op.x)
    return F.silu(x) if op.kind == "silu" else F.gelu(x, approximate="tanh")


def _rope(op: Rope, get: Get) -> Tensor:
    x = get(op.x)
    first, second = x.chunk(2, dim=2)
    return x * get(op.cos) + torch.cat([-second, first], 2) * get(op.sin)


def _attention(op: Attention | TiledAttention, get: Get) -> Tensor:
    q, repeat = get(op.q), op.q.shape[1] // op.k.shape[1]
    k, v = (get(one).repeat_interleave(repeat, dim=1) for one in (op.k, op.v))
    scores = q @ k.transpose(2, 3) * op.scale + get(op.mask)
    return scores.softmax(-1) @ v


def _pad_row(op: PadRow, get: Get) -> Tensor:
    x = get(op.x)
    return F.pad(x, (0, op.width - x.shape[3], 0, 0, 0, op.heads - x.shape[1]))


def _shift_in(op: ShiftIn, get: Get) -> Tensor:
    return torch.cat([get(op.cache), get(op.new)], 2)[:, :, -op.cache.shape[2] :]


def _blend_in(op: BlendIn, get: Get) -> Tensor:
    slot = get(op.slot)
    return get(op.cache) * (1 - slot.sum(3, keepdim=True)) + slot @ get(op.new)


def _cache_row(op: CacheRow, get: Get) -> Tensor:
    return get(op.cache)[op.row : op.row + 1, : op.heads, :, : op.width]


def _state_row(op: StateRow, get: Get) -> Tensor:
    return get(op.state)[op.row : op.row + 1, : op.heads, : op.slots, : op.width]


def _write_state(op: WriteState, get: Get) -> Tensor:
    rows, heads, tokens, width = op.new.shape
    first = int(get(op.index[0])) if op.index else 0
    state = get(op.state).clone()
    slots = state.narrow(2, first, tokens)  # refuses what does not fit
    slots[op.row : op.row + rows, :heads, :, :width] = get(op.new)
    return state


def _topk(op: TopK, get: Get) -> tuple[Tensor, ...]:
    best = get(op.x).topk(op.k, dim=1)
    return best.values, best.indices.int()


MEANINGS: dict[type[Op], Callable[[Any, Get], Tensor | tuple[Tensor, ...]]] = {
    Embed: _embed,
    Scale: lambda op, get: get(op.x) * op.factor,
    ScaleBy: lambda op, get: get(op.x) * get(op.factor),
    RmsNorm: _rms_norm,
    UnitRmsNorm: _unit_rms_norm,
    QuantizeDequantize: lambda op, get: (get(op.x) / op.scale).round().clip(-128, 127) * op.scale,
    Linear: _linear,
    SplitHeads: lambda op, get: get(op.x).reshape(op.result_type().shape),
    JoinHeads: lambda op, get: get(op.x).reshape(op.result_type().shape),
    Channels: lambda op, get: get(op.x)[:, op.first : op.first + op.count],
    JoinChannels: lambda op, get: torch.cat([get(part) for part in op.parts], 1),
    Rope: _rope,
    TokenRows: lambda op, get: get(op.x).transpose(2, 3),
    CacheRow: _cache_row,
    StateRow: _state_row,
    WriteState: _write_state,
    ShiftIn: _shift_in,
    BlendIn: _blend_in,
    AppendRows: lambda op, get: torch.cat([get(op.cache), get(op.new)], 2),
    PadRow: _pad_row,
    Attention: _attention,
    TiledAttention: _attention,
    MergeHeads: lambda op, get: get(op.x).transpose(2, 3).reshape(op.result_type().shape),
    Add: lambda op, get: get(op.x) + get(op.y),
    Copy: lambda op, get: get(op.x),
    Activation: _activation,
    Mul: lambda op, get: get(op.x) * get(op.y),
    StackRows: lambda op, get: torch.cat([get(row) for row in op.rows], 0),
    SelectToken: lambda op, get: (get(op.x) * get(op.selector)).sum(3, keepdim=True),
    Softcap: lambda op, get: torch.tanh(get(op.x) / op.cap) * op.cap,
    Argmax: lambda op, get: get(op.x).argmax(1, keepdim=True).int(),
    TopK: _topk,
    FromTokens: lambda op, get: get(op.x).transpose(1, 2).unsqueeze(2),
    ToTokens: lambda op, get: get(op.x).squeeze(2).transpose(1, 2),
    View: lambda op, get: get(op.x).reshape(op.shape),
    Greatest: lambda op, get: get(op.x).amax(1, keepdim=True),
    Keep: lambda op, get: get(op.x),
}
