"""Activations in eight bits."""

from collections.abc import Iterator

from topoc.dsl.lint.rule import Evidence, Finding, Rule, Trust
from topoc.dsl.lint.subject import Mil, Subject


class Activations(Rule):
    """Activations stay in fp16.

    A phone's compiler takes no `quantize` and no `dequantize`. A Mac takes them and gains nothing,
    since its engine computes in fp16 all the same. And without training, eight bits of activations
    leave little of a decoder: every one of its 56 roundings costs ten times what may be lost.
    """

    placement = True
    evidence = (
        Evidence(
            "a chunk with quantised activations fails to compile on a phone and gains 0 % on a Mac",
            "CoreML-LLM docs/EXPERIMENTS.md:82-87",
            "2026-04-13",
            Trust.MEASURED,
            toolchain="coremltools 9.0, iOS 26",
            device="iPhone 17 Pro; Mac M4 Max",
            figure="ANECCompile() FAILED; 4.04 against 4.09 ms",
        ),
        Evidence(
            "calibrated on real text, a chunk of 8 layers keeps half of its direction",
            "CoreML-LLM docs/STAGE1_W4A8_FINAL.md:36-52",
            "2026-04-26",
            Trust.MEASURED,
            toolchain="coremltools 9.0",
            device="Mac M4 Max, Gemma 4 E2B",
            figure="cosine 0.475 to 0.574; 0.949 with fp16 activations",
        ),
    )
    remedy = "Leave out the rule for `activations`; compress weights alone."
    error_texts = (
        "ANECCompile() FAILED",
        "MILCompilerForANE error: failed to compile ANE model using ANEF",
    )
    bad = """
topology eight_bit_activations {
  model "gemma3.json"
  target ane ios18 a17
  context 2048
  chunk chunk1 = L0-8
  chunk chunk2 = L9-17 + norm + head(argmax)
  quantize {
    weights:     palettize(bits = 4, group = 32)
    activations: int8
  }
}
"""
    good = """
topology weights_alone {
  model "gemma3.json"
  target ane ios18 a17
  context 2048
  chunk chunk1 = L0-8
  chunk chunk2 = L9-17 + norm + head(argmax)
  quantize { weights: palettize(bits = 4, group = 32) }
}
"""
    bad_mil = """
main(x: fp16[1,64]) {
  small: int8[1,64] = quantize(input=x, scale=fp16(0.1), output_dtype="int8")
  back: fp16[1,64] = dequantize(input=small, scale=fp16(0.1))
  y: fp16[1,64] = linear(x=back, weight=fp16[64,64])
  return y
}
"""
    good_mil = """
main(x: fp16[1,64]) {
  w: fp16[64,64] = constexpr_blockwise_shift_scale(data=int8[64,64], scale=fp16[64,1])
  y: fp16[1,64] = linear(x=x, weight=w)
  return y
}
"""

    def _check(self, subject: Subject) -> Iterator[Finding]:
        for recipe in subject.recipes():
            if recipe.role == "activations" and recipe.schemes[0].name != "none":
                message = "the Neural Engine's compiler takes no quantised activations"
                words = "on a Mac they compile and save no time"
                help_ = "leave the rule out; compress weights alone"
                yield self.flag(recipe.span or subject.whole, message, words, help=help_)

    def _check_mil(self, subject: Mil) -> Iterator[Finding]:
        from topoc.dsl.lint.at_ops import at_ops

        for function in subject.package.functions:
            ops = [
                one
                for one in function.of("quantize", "dequantize")
                if not function.is_constant(one.operand("input"))
            ]
            if ops:
                message = "activations are quantised, which phones refuse and Macs gain nothing by"
                way = "compress weights alone"
                yield at_ops(self, subject, function, ops, message, help=way)
