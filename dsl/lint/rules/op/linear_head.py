"""A vocabulary head as `linear`."""

from collections.abc import Iterator

from topoc.dsl.diagnostic import Severity
from topoc.dsl.lint.at_ops import at_ops
from topoc.dsl.lint.rule import Evidence, Finding, Rule, Trust
from topoc.dsl.lint.subject import Mil

CLASSES = 32_768  # no MLP of the models that were measured is as wide


class LinearHead(Rule):
    """A head over a vocabulary is a convolution of one point.

    In one model the chunk of the head lost 31 points of placement when its convolution became a
    `linear`. Inside layers the two were as fast as each other, so that other `linear` ops are left
    alone.
    """

    severity = Severity.WARNING
    placement = True
    remedy = "Write the head as a 1x1 convolution."
    evidence = (
        Evidence(
            "the head of Qwen3-VL as `linear` loses 31 points of placement",
            "CoreML-LLM docs/ROADMAP_2026_04_26.md:333",
            "2026-04-26",
            Trust.MEASURED,
            toolchain="coremltools 9.0",
            device="Mac",
        ),
        Evidence(
            "inside layers `linear` and convolution differ by a hundredth",
            "CoreML-LLM docs/SESSION_2026_04_26_STATEFUL_PLAN3_PHASE2A.md:59-75",
            "2026-04-26",
            Trust.MEASURED,
            device="iPhone 17 Pro, iOS 26",
            figure="40.0 and 39.9 tok/s",
        ),
    )
    bad_mil = """
main(x: fp16[1,64]) {
  logits: fp16[1,151936] = linear(x=x, weight=fp16[151936,64])
  return logits
}
"""
    good_mil = """
main(x: fp16[1,64,1,1]) {
  up: fp16[1,256,1,1] = linear(x=x, weight=fp16[256,64])
  logits: fp16[1,151936,1,1] = conv(x=up, weight=fp16[151936,256,1,1])
  return logits
}
"""

    def _check_mil(self, subject: Mil) -> Iterator[Finding]:
        for function in subject.package.functions:
            ops = [
                one
                for one in function.of("linear")
                if function.type_of(one.operand("weight")).shape[:1] >= (CLASSES,)
            ]
            if ops:
                classes = function.type_of(ops[0].operand("weight")).shape[0]
                message = f"a `linear` gives {classes:,} classes; such a head lost its placement"
                way = "write the head as a 1x1 convolution"
                yield at_ops(self, subject, function, ops, message, help=way)
