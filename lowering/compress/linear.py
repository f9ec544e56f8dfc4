"""Linear quantisation: whole steps of a scale, the same number on either side of zero."""

from collections.abc import Iterator

import numpy as np
import torch

from topoc.lowering.compress.packing import Packer
from topoc.lowering.compress.parts import Compressed, Part, part, size_of
from topoc.lowering.compress.recipe import Linear
from topoc.lowering.compress.source import Source, codes, spans, unfit

GREATEST = 65504.0  # of fp16


def quantise(source: Source, how: Linear) -> Compressed:
    """The constants of `constexpr_blockwise_shift_scale`: `data`, and `scale` in fp16.

    `data` are [rows, columns] in int8 or int4, without the least value, so that they are symmetric.
    `scale` is [rows, 1], [1, 1], or [rows, columns / block].
    """
    rows, columns = source.shape
    levels = (1 << (how.bits - 1)) - 1
    block = how.block if how.per == "block" else columns
    whole = _scale(_extremes(source), levels) if how.per == "tensor" else None
    data = Part(f"int{how.bits}", source.shape, _memory(how.bits, source.shape))
    packer = Packer(data.data, how.bits)
    scales = []
    for values in _rows(source):
        split = values.view(len(values), columns // block, block)
        scale = whole if whole is not None else _scale(_ends(split), levels)
        steps = (split / scale[..., None]).round_().clamp_(-levels, levels)
        packer.append(steps.char().numpy().view(np.uint8) & np.uint8((1 << how.bits) - 1))
        scales.append(scale)
    packer.finish()
    scale = whole if whole is not None else torch.cat(scales)
    return Compressed(how, rows, {"data": data, "scale": part("fp16", scale.half().numpy())})


def _memory(bits: int, shape: tuple[int, ...]) -> np.ndarray:
    return np.empty(size_of(f"int{bits}", shape), np.uint8)


def _rows(source: Source) -> Iterator[torch.Tensor]:
    """Blocks of rows, rounded to fp16, as float32."""
    for start, stop in spans(0, *source.shape):
        values = torch.from_numpy(codes(source, start, stop).view(np.float16)).float()
        if not torch.isfinite(values).all():
            raise unfit(source, start, stop)
        yield values


def _ends(values: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The least size above zero and the greatest, along the last axis; infinity if all are zero."""
    sizes = values.abs()
    peak = sizes.amax(-1)
    return sizes.masked_fill_(sizes == 0.0, torch.inf).amin(-1), peak


def _extremes(source: Source) -> tuple[torch.Tensor, torch.Tensor]:
    """The same of a whole tensor: [1, 1]."""
    least, peak = zip(*(_ends(one.view(1, 1, -1)) for one in _rows(source)), strict=True)
    return torch.stack(least).amin(0), torch.stack(peak).amax(0)


def _scale(ends: tuple[torch.Tensor, torch.Tensor], levels: int) -> torch.Tensor:
    """The step of each block, a number of fp16 in float32.

    Where all sizes are one, it is the step, and nothing is lost; 1 where all are zero. A subnormal
    step is rounded up, for rounded down it could miss the peak by a large part; and a step whose
    greatest multiple fp16 can't hold is rounded down.
    """
    least, peak = ends
    step = (peak / levels).half()
    low = (step < torch.finfo(torch.float16).smallest_normal) & (step.float() * levels < peak)
    step = torch.where(low, _next(step, 1), step)
    step = torch.where(step.float() * levels > GREATEST, _next(step, -1), step).float()
    step = torch.where(least == peak, peak, step)
    return step.masked_fill(peak == 0.0, 1.0)


def _next(step: torch.Tensor, by: int) -> torch.Tensor:
    """The neighbour of positive fp16 numbers."""
    return (step.view(torch.int16) + by).view(torch.float16)
