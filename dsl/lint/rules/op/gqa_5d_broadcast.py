"""Grouped heads by a broadcast over five axes."""

from collections.abc import Iterator

from topoc.dsl.lint.at_ops import at_ops
from topoc.dsl.lint.rule import Evidence, Finding, Rule, Trust
from topoc.dsl.lint.subject import Mil
from topoc.dsl.lint.trace import broadcasts


class Gqa5dBroadcast(Rule):
    """Grouped heads share their keys without a fifth axis.

    Three changes went to a phone together and cost it five sixths of its speed: grouped heads by
    a broadcast over five axes, `exp2` in softmax, and MLPs as tiles of 8 by 8. Which of the three
    did it was never found out, so that each of them is an error.
    """

    placement = True
    remedy = "Put a group's queries into the rows of one product of four axes."
    evidence = (
        Evidence(
            "a build with a broadcast over five axes, `exp2` and tiled MLPs ran on the Neural"
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
main(q: fp16[1,2,4,1,64], k: fp16[1,2,1,64,512]) {
  scores: fp16[1,2,4,1,512] = matmul(x=q, y=k)
  return scores
}
"""
    good_mil = """
main(q: fp16[1,2,4,64], k: fp16[1,2,64,512]) {
  scores: fp16[1,2,4,512] = matmul(x=q, y=k)
  return scores
}
"""

    def _check_mil(self, subject: Mil) -> Iterator[Finding]:
        for function in subject.package.functions:
            ops = [one for one in function.of("matmul") if one.type.rank >= 5]
            ops = [one for one in ops if broadcasts(function, one)]
            if ops:
                message = "heads share keys by a broadcast over five axes, one of three suspects"
                way = "put a group's queries into the rows of one product of four axes"
                yield at_ops(self, subject, function, ops, message, help=way)
