"""Palettes whose entries have eight bits."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from topoc.dsl.lint.gather import by_recipe
from topoc.dsl.lint.rule import Evidence, Finding, Rule, Trust
from topoc.dsl.lint.subject import Mil, Subject

if TYPE_CHECKING:
    from topoc.dsl.lint.mil import Function, Op


class Int8Lut(Rule):
    """The entries of a palette stay in fp16.

    With entries of eight bits each palette is dequantised by an operation of its own, which the
    Neural Engine does not run. Nothing gets smaller either: almost all bytes are indices.
    """

    placement = True
    evidence = (
        Evidence(
            "73 dequantisations leave the engine, latency and quality get worse, size stays",
            "CoreML-LLM docs/SESSION_2026_04_26_ROUND8_INT8_LUT_PROBE.md:14-33",
            "2026-04-26",
            Trust.MEASURED,
            toolchain="coremltools 9.0",
            device="MacBook Air M3",
            figure="92.9 to 86.7 % on the engine, +3.4 % latency, 0 % size, cosine 0.83",
        ),
    )
    remedy = "Leave out `lut = int8`."
    bad = """
topology small_palettes {
  model "gemma3.json"
  target ane ios18 a17
  context 2048
  chunk chunk1 = L0-8
  chunk chunk2 = L9-17 + norm + head(argmax)
  quantize { weights: palettize(bits = 4, group = 32, lut = int8) }
}
"""
    good = """
topology fp16_palettes {
  model "gemma3.json"
  target ane ios18 a17
  context 2048
  chunk chunk1 = L0-8
  chunk chunk2 = L9-17 + norm + head(argmax)
  quantize { weights: palettize(bits = 4, group = 32) }
}
"""
    bad_mil = """
main(x: fp16[1,128]) {
  lut: fp16[1,1,16,1] = constexpr_blockwise_shift_scale(data=int8[1,1,16,1], scale=fp16[1,1,1,1])
  w: fp16[64,128] = constexpr_lut_to_dense(indices=uint4[64,128], lut=lut)
  y: fp16[1,64] = linear(x=x, weight=w)
  return y
}
"""
    good_mil = """
main(x: fp16[1,128]) {
  w: fp16[64,128] = constexpr_lut_to_dense(indices=uint4[64,128], lut=fp16[1,1,16,1])
  y: fp16[1,64] = linear(x=x, weight=w)
  return y
}
"""

    def _check(self, subject: Subject) -> Iterator[Finding]:
        faulty = (
            recipe
            for recipe in subject.recipes()
            if any(dict(one.arguments).get("lut") == "int8" for one in recipe.schemes)
        )
        for span, tensors in by_recipe(subject, faulty):
            message = f"palettes with entries of eight bits leave the Neural Engine ({tensors})"
            words = "slower by 3.4 %, no smaller, cosine 0.83"
            yield self.flag(span, message, words, help="leave out `lut = int8`")

    def _check_mil(self, subject: Mil) -> Iterator[Finding]:
        from topoc.dsl.lint.at_ops import at_ops
        from topoc.dsl.lint.weights import PALETTE, SPARSE_PALETTE

        for function in subject.package.functions:
            ops = [one for one in function.of(PALETTE, SPARSE_PALETTE) if _is_small(function, one)]
            if ops:
                message = "palettes have entries of eight bits, whose ops leave the Neural Engine"
                way = "give palettes fp16 entries"
                yield at_ops(self, subject, function, ops, message, help=way)


def _is_small(function: "Function", op: "Op") -> bool:
    """Entries of eight bits, or entries that another op scales up from eight."""
    lut = op.operand("lut")
    maker = function.maker(lut)
    return "int8" in function.type_of(lut).dtype or (maker is not None and maker.kind != "const")
