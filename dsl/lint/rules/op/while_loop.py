"""A loop that the model runs."""

from collections.abc import Iterator

from topoc.dsl.lint.at_ops import at_ops
from topoc.dsl.lint.rule import Evidence, Finding, Rule, Trust
from topoc.dsl.lint.subject import Mil
from topoc.dsl.lint.trace import counted


class WhileLoop(Rule):
    """A program for the Neural Engine has no loops.

    A `while_loop` was told to cost a whole program its place on the Neural Engine. Loops whose
    length is known are unrolled when the program is built.
    """

    placement = True
    remedy = "Unroll the loop when the program is built."
    evidence = (
        Evidence(
            "a program with a loop as a whole leaves the Neural Engine",
            "CoreML-LLM docs/QWEN35_ROADMAP.md:44",
            "2026-04",
            Trust.REPORTED,
        ),
    )
    bad_mil = """
main(x: fp16[1,64]) {
  y: fp16[1,64] = while_loop(loop_vars=(x)) {
    less: bool[] = reduce_any(x=x)
    return less
  } {
    half: fp16[1,64] = mul(x=x, y=0.5)
    return half
  }
  return y
}
"""
    good_mil = """
main(x: fp16[1,64]) {
  half: fp16[1,64] = mul(x=x, y=0.5)
  quarter: fp16[1,64] = mul(x=half, y=0.5)
  return quarter
}
"""

    def _check_mil(self, subject: Mil) -> Iterator[Finding]:
        for function in subject.package.functions:
            ops = list(function.of("while_loop"))
            if ops:
                message = (
                    f"`{function.name}` has {counted(ops)}, which keeps it off the Neural Engine"
                )
                yield at_ops(
                    self,
                    subject,
                    function,
                    ops,
                    message,
                    help="unroll the loop when the program is built",
                )
