"""Scales of channels on top of palettes."""

from collections.abc import Iterator

from topoc.dsl.lint.at_ops import at_ops
from topoc.dsl.lint.mil import Function, Op
from topoc.dsl.lint.rule import Evidence, Finding, Rule, Trust
from topoc.dsl.lint.subject import Mil
from topoc.dsl.lint.weights import PALETTE, SCALED, data_of, scale_groups, split_axes


class PerChannelScale(Rule):
    """Palettes come without scales of their own.

    `enable_per_channel_scale` divides each channel by its greatest weight before it is clustered.
    The op that multiplies it back made a Mac's loader end with an error about operand shapes.
    """

    placement = True
    remedy = "Palettise without `enable_per_channel_scale`, in groups of channels."
    error_texts = ("'mps.dequantize' op operand #2 must be tensor of quantized values",)
    evidence = (
        Evidence(
            "4-bit palettes with a scale a channel end in an error of mps.dequantize",
            "CoreML-LLM docs/QWEN3VL_2B_INT6.md:23,90",
            "2026-04",
            Trust.MEASURED,
            toolchain="coremltools 9.0",
            device="Mac, macOS 26",
        ),
        Evidence(
            "the same error, and one report of it without the setting",
            "apple/coremltools#2688",
            "2026-03",
            Trust.REPORTED,
        ),
    )
    bad_mil = """
main(x: fp16[1,128]) {
  plain: fp16[64,128] = constexpr_lut_to_dense(indices=uint4[64,128], lut=fp16[1,1,16,1])
  w: fp16[64,128] = constexpr_blockwise_shift_scale(data=plain, scale=fp16[64,1])
  y: fp16[1,64] = linear(x=x, weight=w)
  return y
}
"""
    good_mil = """
main(x: fp16[1,128]) {
  w: fp16[64,128] = constexpr_lut_to_dense(indices=uint4[64,128], lut=fp16[8,1,16,1])
  y: fp16[1,64] = linear(x=x, weight=w)
  return y
}
"""

    def _check_mil(self, subject: Mil) -> Iterator[Finding]:
        for function in subject.package.functions:
            ops = [one for one in function.of(SCALED) if _scales_channels(function, one)]
            if ops:
                message = "palettes have a scale a channel, which a loader was seen to refuse"
                way = "palettise without `enable_per_channel_scale`"
                yield at_ops(self, subject, function, ops, message, help=way)


def _scales_channels(function: Function, op: Op) -> bool:
    data = data_of(function, op)
    channels = split_axes(scale_groups(function, op)) <= 1
    return channels and data is not None and data.kind == PALETTE
