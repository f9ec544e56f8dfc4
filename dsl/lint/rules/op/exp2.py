"""Powers of two in place of powers of e."""

from collections.abc import Iterator

from topoc.dsl.lint.at_ops import at_ops
from topoc.dsl.lint.rule import Evidence, Finding, Rule, Trust
from topoc.dsl.lint.subject import Mil
from topoc.dsl.lint.trace import counted


class Exp2(Rule):
    """Softmax is written with `exp` or as `softmax`.

    Three changes went to a phone together and cost it five sixths of its speed: `exp2` in softmax,
    MLPs as tiles of 8 by 8, and grouped heads by broadcast over five axes. Which of the three did
    it was never found out, so that each of them is an error.
    """

    placement = True
    remedy = "Write `exp`, or `softmax` as one op."
    evidence = (
        Evidence(
            "a build with `exp2`, tiled MLPs and a broadcast over five axes ran on the Neural"
            " Engine to 80 %; the culprit of the three was never isolated",
            "CoreML-LLM docs/PRIORITY_ROADMAP.md:79-88,265",
            "2026-04-14",
            Trust.MEASURED,
            toolchain="coremltools 9.0",
            device="iPhone 17 Pro, iOS 26",
            figure="15.0 -> 2.7 tok/s",
        ),
    )
    bad_mil = """
main(x: fp16[1,8,1,512]) {
  y: fp16[1,8,1,512] = exp2(x=x)
  return y
}
"""
    good_mil = """
main(x: fp16[1,8,1,512]) {
  y: fp16[1,8,1,512] = softmax(x=x, axis=-1)
  return y
}
"""

    def _check_mil(self, subject: Mil) -> Iterator[Finding]:
        for function in subject.package.functions:
            ops = list(function.of("exp2"))
            if ops:
                message = f"{counted(ops)}, one of three suspects in a fall to a sixth of the speed"
                yield at_ops(
                    self,
                    subject,
                    function,
                    ops,
                    message,
                    help="write `exp`, or `softmax` as one op",
                )
