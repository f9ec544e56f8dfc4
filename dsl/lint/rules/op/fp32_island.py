"""Arithmetic in fp32."""

from collections.abc import Iterator

from topoc.dsl.diagnostic import Severity
from topoc.dsl.lint.at_ops import at_function, at_ops
from topoc.dsl.lint.rule import Evidence, Finding, Rule, Trust
from topoc.dsl.lint.subject import Mil


class Fp32Island(Rule):
    """A program for the Neural Engine computes in fp16, and gives fp16.

    What computes in fp32 leaves the Neural Engine, and a cast to fp32 at the end does so too. It
    need not be asked for: coremltools leaves a whole op in fp32, without a word, when one of its
    weights does not fit fp16.
    """

    severity = Severity.WARNING
    placement = True
    remedy = "Convert with fp16 precision, mend weights beyond fp16, and give fp16 outputs."
    evidence = (
        Evidence(
            "a head in fp32 runs on the GPU or the CPU",
            "CoreML-LLM docs/QWEN35_FULL_VOCAB_REP_PENALTY.md:27-44",
            "2026-04-25",
            Trust.MEASURED,
            device="iPhone 17 Pro, iOS 26",
            figure="49 -> 14 to 33 tok/s",
        ),
        Evidence(
            "a cast of the logits to fp32 runs elsewhere and moves 1 MB a step",
            "CoreML-LLM docs/QWEN35_LESSONS.md:276-282",
            "2026-04-28",
            Trust.MEASURED,
            device="iPhone 17 Pro, iOS 26",
        ),
        Evidence(
            "a linear whose weight holds 7e4 stays in fp32 as a whole, without a warning",
            "coremltools 9.0, converting a linear; apple/coremltools#2585",
            "2026-11-30",
            Trust.MEASURED,
            toolchain="coremltools 9.0",
        ),
    )
    bad_mil = """
main(x: fp16[1,64]) {
  wide: fp32[1,64] = cast(x=x, dtype="fp32")
  y: fp32[1,64] = exp(x=wide)
  z: fp16[1,64] = cast(x=y, dtype="fp16")
  return z
}
"""
    good_mil = """
main(x: fp16[1,64]) {
  y: fp16[1,64] = exp(x=x)
  return y
}
"""

    def _check_mil(self, subject: Mil) -> Iterator[Finding]:
        for function in subject.package.functions:
            ops = [
                one for one in function.compute if one.kind != "cast" and one.type.dtype == "fp32"
            ]
            if ops:
                count = f"{len(ops)} ops compute" if len(ops) > 1 else f"`{ops[0].kind}` computes"
                message = f"{count} in fp32, which leaves the Neural Engine"
                way = "convert with fp16 precision; look for weights beyond 65504"
                yield at_ops(self, subject, function, ops, message, help=way)
            wide = [one for one in function.outputs if function.type_of(one).dtype == "fp32"]
            if wide:
                message = f"output `{wide[0]}` is fp32, whose cast leaves the Neural Engine"
                way = "give it as fp16, and let the host widen it"
                yield at_function(self, subject, function, message, part=wide[0], help=way)
