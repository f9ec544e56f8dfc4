"""A depthwise kernel from a palette."""

from collections.abc import Iterator

from topoc.dsl.lint.at_ops import at_ops
from topoc.dsl.lint.rule import Evidence, Finding, Rule, Trust
from topoc.dsl.lint.subject import Mil
from topoc.dsl.lint.weights import depthwise_palettes


class Depthwise(Rule):
    """The kernel of a depthwise convolution stays fp16.

    Such kernels are small, and a palette for one failed in the Neural Engine's planner, where the
    CPU took it.
    """

    placement = True
    remedy = "Exclude depthwise kernels from compression by name."
    evidence = (
        Evidence(
            "a palettised depthwise kernel fails in the planner; on the CPU it runs",
            "CoreML-LLM docs/LFM2_CONVERSION_FINDINGS.md:138-140",
            "2026-04-28",
            Trust.MEASURED,
            device="iPhone, iOS 26",
        ),
    )
    bad_mil = """
main(x: fp16[1,1024,1,4]) {
  w: fp16[1024,1,1,4] = constexpr_lut_to_dense(indices=uint4[1024,1,1,4], lut=fp16[1,1,1,1,16,1])
  y: fp16[1,1024,1,1] = conv(x=x, weight=w, groups=1024)
  return y
}
"""
    good_mil = """
main(x: fp16[1,1024,1,4]) {
  y: fp16[1,1024,1,1] = conv(x=x, weight=fp16[1024,1,1,4], groups=1024)
  return y
}
"""

    def _check_mil(self, subject: Mil) -> Iterator[Finding]:
        for function in subject.package.functions:
            ops = list(depthwise_palettes(function))
            if ops:
                message = "a depthwise kernel comes from a palette, which the planner refused"
                way = "exclude depthwise kernels from compression"
                yield at_ops(self, subject, function, ops, message, help=way)
