"""Values that are picked by a computed list of places."""

from collections.abc import Iterator

from topoc.dsl.lint.at_ops import at_ops
from topoc.dsl.lint.mil import Function, Op
from topoc.dsl.lint.rule import Evidence, Finding, Rule, Trust
from topoc.dsl.lint.subject import Mil


class ComputedGather(Rule):
    """What is picked is known before the program runs.

    An index by a mask of truth values becomes a `gather_nd` whose places the data decide. On a
    phone it gave nothing but zeros, where the same package was right on a Mac.
    """

    placement = True
    remedy = "Make the padding static, and multiply by a mask in place of picking."
    evidence = (
        Evidence(
            "a `gather_nd` by a mask of truth values gives zeros on the Neural Engine",
            "CoreML-LLM docs/PROBE_GEMMA4_VISION_ANE.md:27-33",
            "2026-04",
            Trust.MEASURED,
            toolchain="coremltools 9.0",
            device="iPhone 17 Pro, iOS 26",
            figure="norm 0 in place of 521",
        ),
    )
    bad_mil = """
main(x: fp16[1,16,64], places: int32[4,2]) {
  y: fp16[4,64] = gather_nd(x=x, indices=places, batch_dims=0)
  return y
}
"""
    good_mil = """
main(x: fp16[1,16,64], mask: fp16[1,16,1]) {
  y: fp16[1,16,64] = mul(x=x, y=mask)
  return y
}
"""

    def _check_mil(self, subject: Mil) -> Iterator[Finding]:
        for function in subject.package.functions:
            ops = [one for one in function.of("gather_nd") if _is_computed(function, one)]
            if ops:
                message = "`gather_nd` picks by computed places, which gave zeros on a phone"
                way = "multiply by a mask in place of picking"
                yield at_ops(self, subject, function, ops, message, help=way)


def _is_computed(function: Function, gather: Op) -> bool:
    return not function.is_constant(gather.operand("indices"))
