"""The best of more classes than 16 bits count."""

from collections.abc import Iterator

from topoc.dsl.lint.at_ops import at_ops
from topoc.dsl.lint.rule import Evidence, Finding, Rule, Trust
from topoc.dsl.lint.subject import Mil
from topoc.dsl.lint.trace import axis_size


class WideTopk(Rule):
    """`topk` chooses among at most 65,536 classes.

    Behind other ops, a `topk` over a vocabulary of 262,144 gave indices of which only the lower
    16 bits were right. By itself it was right, so that a test of the op alone shows nothing.
    """

    remedy = "Split the vocabulary, or take `reduce_argmax` with an int32 result."
    evidence = (
        Evidence(
            "softcap, squeeze, topk over 262,144 classes: indices are off by multiples of 65,536",
            "CoreML-LLM docs/MTP_PATH_C_FINDINGS.md:83-91",
            "2026-04-22",
            Trust.MEASURED,
            toolchain="coremltools 9.0",
            device="Mac",
        ),
    )
    bad_mil = """
main(x: fp16[1,70000]) {
  values: fp16[1,8], best: int32[1,8] = topk(x=x, k=8, axis=-1)
  return best
}
"""
    good_mil = """
main(x: fp16[1,65536]) {
  values: fp16[1,8], best: int32[1,8] = topk(x=x, k=8, axis=-1)
  return best
}
"""

    def _check_mil(self, subject: Mil) -> Iterator[Finding]:
        limit = subject.profile.limit("classes of a topk")
        for function in subject.package.functions:
            ops = [o for o in function.of("topk") if limit.rank(axis_size(function, o)) is not None]
            if ops:
                classes = axis_size(function, ops[0])
                message = f"`topk` over {classes:,} classes, whose indices keep only 16 bits"
                way = "split the vocabulary, or take `reduce_argmax`"
                yield at_ops(self, subject, function, ops, message, help=way)
