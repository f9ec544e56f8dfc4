"""Four bits with one scale a channel."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from topoc.dsl.diagnostic import Severity
from topoc.dsl.lint.gather import by_recipe
from topoc.dsl.lint.rule import Evidence, Finding, Rule, Trust
from topoc.dsl.lint.subject import Mil, Subject
from topoc.dsl.lint.tensors import inputs

if TYPE_CHECKING:
    from topoc.dsl.lint.mil import Function, Op


class PerChannelInt4(Rule):
    """Sixteen even steps over a whole row of weights are too coarse, and slow besides.

    Linear weights of four bits with one scale a channel ran at two thirds of the speed of palettes,
    and wrote digits. A block of 32 weights for each scale, or a palette, keeps the answers.
    """

    severity = Severity.WARNING
    evidence = (
        Evidence(
            "int4 with one scale a channel: slower than palettes, and digits for answers",
            "CoreML-LLM docs/QWEN3VL_2B_INT6.md:22",
            "2026-05",
            Trust.MEASURED,
            toolchain="coremltools 9.0, macOS 26",
            device="Mac M4, Qwen3-VL 2B",
            figure="19.1 against 31.4 tok/s",
        ),
    )
    remedy = "Write `int4(block = 32)` or `palettize(bits = 4, group = 32)`."
    bad = """
topology a_scale_a_row {
  model "gemma3.json"
  target ane ios18 a17
  context 2048
  chunk chunk1 = L0-8
  chunk chunk2 = L9-17 + norm + head(argmax)
  quantize { q, k, v: int4(block = 640) }
}
"""
    good = """
topology a_scale_a_block {
  model "gemma3.json"
  target ane ios18 a17
  context 2048
  chunk chunk1 = L0-8
  chunk chunk2 = L9-17 + norm + head(argmax)
  quantize { q, k, v: int4(block = 32) }
}
"""
    bad_mil = """
main(x: fp16[1,128]) {
  w: fp16[64,128] = constexpr_blockwise_shift_scale(data=int4[64,128], scale=fp16[64,1])
  y: fp16[1,64] = linear(x=x, weight=w)
  return y
}
"""
    good_mil = """
main(x: fp16[1,128]) {
  w: fp16[64,128] = constexpr_blockwise_shift_scale(data=int8[64,128], scale=fp16[64,1])
  y: fp16[1,64] = linear(x=x, weight=w)
  return y
}
"""

    def _check(self, subject: Subject) -> Iterator[Finding]:
        faulty = (
            recipe
            for recipe in subject.topology.recipes
            for one in recipe.schemes
            if one.name == "int4"
            and 0 < inputs(subject.topology.layers, recipe) <= int(dict(one.arguments)["block"])
        )
        for span, tensors in by_recipe(subject, faulty):
            message = f"four bits with one scale a channel are too coarse ({tensors})"
            words = "it ran at 19 tok/s where palettes ran at 31, and wrote digits"
            help_ = "write `int4(block = 32)`, or `palettize(bits = 4, group = 32)`"
            yield self.flag(span, message, words, help=help_)

    def _check_mil(self, subject: Mil) -> Iterator[Finding]:
        from topoc.dsl.lint.at_ops import at_ops
        from topoc.dsl.lint.weights import SCALED

        for function in subject.package.functions:
            ops = [one for one in function.of(SCALED) if _is_coarse(function, one)]
            if ops:
                message = "weights of four bits have one scale a channel, and palettes do better"
                way = "use palettes of 16 entries"
                yield at_ops(self, subject, function, ops, message, help=way)


def _is_coarse(function: "Function", op: "Op") -> bool:
    """Four bits, and scales along one axis at most."""
    from topoc.dsl.lint.weights import scale_groups, split_axes

    four = function.type_of(op.operand("data")).bits == 4
    return four and split_axes(scale_groups(function, op)) <= 1
