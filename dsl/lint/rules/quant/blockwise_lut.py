"""A palette for each block of each row."""

from collections.abc import Iterator

from topoc.dsl.lint.at_ops import at_ops
from topoc.dsl.lint.mil import Function, Op
from topoc.dsl.lint.rule import Evidence, Finding, Rule, Trust
from topoc.dsl.lint.subject import Mil
from topoc.dsl.lint.weights import (
    PALETTE,
    SCALED,
    data_of,
    palette_groups,
    scale_groups,
    split_axes,
)


class BlockwiseLut(Rule):
    """Palettes are grouped along one axis.

    A palette for each block of each row, or palettes with scales of blocks on top, can be saved and
    validated. The Neural Engine's compiler then refused the package with -14.
    """

    placement = True
    remedy = "Use one palette a tensor, or groups of channels along one axis."
    error_texts = ("Failed to build the model execution plan using a model architecture file",)
    evidence = (
        Evidence(
            "palettes of shape (2048, 16, 4, 1), and palettes under scales of blocks, end in -14",
            "CoreML-LLM docs/DECODE_STATE_LAYOUTS.md:208-231",
            "2026-04-28",
            Trust.MEASURED,
            toolchain="coremltools 9.0, target iOS 18",
            device="Mac",
        ),
    )
    bad_mil = """
main(x: fp16[1,128]) {
  w: fp16[64,128] = constexpr_lut_to_dense(indices=uint4[64,128], lut=fp16[64,8,16,1])
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
        way = "use one palette a tensor, or groups along one axis"
        for function in subject.package.functions:
            blocks = [
                one for one in function.of(PALETTE) if split_axes(palette_groups(function, one)) > 1
            ]
            if blocks:
                message = "palettes are grouped along two axes, which the compiler refused with -14"
                yield at_ops(self, subject, function, blocks, message, help=way)
            chains = [one for one in function.of(SCALED) if _scales_a_palette(function, one)]
            if chains:
                message = "palettes lie under scales of blocks, which the compiler refused with -14"
                yield at_ops(self, subject, function, chains, message, help=way)


def _scales_a_palette(function: Function, op: Op) -> bool:
    """Scales of blocks on what a palette gives; scales of channels are another rule's."""
    data = data_of(function, op)
    blocks = split_axes(scale_groups(function, op)) > 1
    return blocks and data is not None and data.kind == PALETTE
