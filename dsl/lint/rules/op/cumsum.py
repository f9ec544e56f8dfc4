"""A running sum."""

from collections.abc import Iterator

from topoc.dsl.diagnostic import Severity
from topoc.dsl.lint.at_ops import at_ops
from topoc.dsl.lint.rule import Evidence, Finding, Rule, Trust
from topoc.dsl.lint.subject import Mil
from topoc.dsl.lint.trace import counted


class Cumsum(Rule):
    """Running sums are written as a product with a triangle of ones.

    `cumsum` ran on the CPU wherever it was seen. Its neighbours stayed where they were, so that
    each one costs a way to the CPU and back.
    """

    severity = Severity.WARNING
    placement = True
    remedy = "Multiply by a constant lower triangle of ones."
    evidence = (
        Evidence(
            "every `cumsum` runs on the CPU, one a layer; what is around it does not move",
            "CoreML-LLM docs/QWEN35_ROADMAP.md:40,89-97",
            "2026-04",
            Trust.MEASURED,
            toolchain="coremltools 9.0, target iOS 18",
            device="Mac",
        ),
    )
    bad_mil = """
main(x: fp16[1,16,64]) {
  y: fp16[1,16,64] = cumsum(x=x, axis=1, exclusive=false, reverse=false)
  return y
}
"""
    good_mil = """
main(x: fp16[1,16,64]) {
  lower: fp16[16,16] = const()
  y: fp16[1,16,64] = matmul(x=lower, y=x)
  return y
}
"""

    def _check_mil(self, subject: Mil) -> Iterator[Finding]:
        for function in subject.package.functions:
            ops = list(function.of("cumsum"))
            if ops:
                message = f"`{function.name}` has {counted(ops)}, which runs on the CPU"
                yield at_ops(
                    self,
                    subject,
                    function,
                    ops,
                    message,
                    help="multiply by a constant lower triangle of ones",
                )
