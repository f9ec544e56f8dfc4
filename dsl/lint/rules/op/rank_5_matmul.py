"""A matrix product over five axes."""

from collections.abc import Iterator

from topoc.dsl.diagnostic import Severity
from topoc.dsl.lint.at_ops import at_ops
from topoc.dsl.lint.rule import Evidence, Finding, Rule, Trust
from topoc.dsl.lint.subject import Mil
from topoc.dsl.lint.trace import broadcasts


class Rank5Matmul(Rule):
    """Matrices are multiplied over at most four axes.

    A `matmul` of five axes ran on the CPU. Merging the leading axes changes nothing of what it
    computes, and it then ran on the Neural Engine.
    """

    severity = Severity.WARNING
    placement = True
    remedy = "Merge the leading axes to one, and reshape after the product."
    evidence = (
        Evidence(
            "a matmul of shape (B, H, N, C, C) runs on the CPU; as a batch of rank 3 it does not",
            "CoreML-LLM docs/QWEN35_ROADMAP.md:85",
            "2026-04",
            Trust.MEASURED,
            toolchain="coremltools 9.0, target iOS 18",
            device="Mac",
        ),
        Evidence(
            "five axes in attention keep a converted cache off the Neural Engine",
            "FluidInference/mobius#67",
            "2026-01",
            Trust.REPORTED,
        ),
    )
    bad_mil = """
main(x: fp16[1,4,8,16,16], y: fp16[1,4,8,16,16]) {
  z: fp16[1,4,8,16,16] = matmul(x=x, y=y)
  return z
}
"""
    good_mil = """
main(x: fp16[32,16,16], y: fp16[32,16,16]) {
  z: fp16[32,16,16] = matmul(x=x, y=y)
  return z
}
"""

    def _check_mil(self, subject: Mil) -> Iterator[Finding]:
        for function in subject.package.functions:
            ops = [one for one in function.of("matmul") if one.type.rank >= 5]
            ops = [one for one in ops if not broadcasts(function, one)]  # another rule's finding
            if ops:
                message = f"a `matmul` of {ops[0].type.rank} axes, which runs on the CPU"
                way = "merge the leading axes before the product"
                yield at_ops(self, subject, function, ops, message, help=way)
