"""Values written to computed places."""

from collections.abc import Iterator

from topoc.dsl.lint.at_ops import at_ops
from topoc.dsl.lint.rule import Evidence, Finding, Rule, Trust
from topoc.dsl.lint.subject import Mil
from topoc.dsl.lint.trace import counted


class Scatter(Rule):
    """Nothing is scattered to computed places.

    No source saw a scatter on the Neural Engine, and those who write caches avoid it everywhere.
    It also comes from loops that assign row by row, and from running products.
    """

    placement = True
    remedy = "Write rows with `slice_update`, or blend them in with a one-hot mask."
    evidence = (
        Evidence(
            "caches are written by `slice_update` or by comparing positions, never by scatter",
            "CoreML-LLM conversion/build_qwen3_vl_2b_prefill_chunks.py:18-26",
            "2026-04",
            Trust.REPORTED,
            device="iPhone 17 Pro, iOS 26",
        ),
        Evidence(
            "a converted cache write by scatter is not run by the Neural Engine",
            "FluidInference/mobius#67",
            "2026-01",
            Trust.REPORTED,
        ),
    )
    bad_mil = """
main(cache: fp16[1,8,512,64], row: fp16[1,8,1,64], at: int32[1,1]) {
  y: fp16[1,8,512,64] = scatter_nd(data=cache, indices=at, updates=row, mode="update")
  return y
}
"""
    good_mil = """
main(cache: fp16[1,8,512,64], row: fp16[1,8,1,64], slot: fp16[1,1,512,1]) {
  others: fp16[1,1,512,1] = sub(x=1.0, y=slot)
  kept: fp16[1,8,512,64] = mul(x=cache, y=others)
  placed: fp16[1,8,512,64] = mul(x=row, y=slot)
  y: fp16[1,8,512,64] = add(x=kept, y=placed)
  return y
}
"""

    def _check_mil(self, subject: Mil) -> Iterator[Finding]:
        for function in subject.package.functions:
            ops = list(function.of("scatter", "scatter_nd", "scatter_along_axis"))
            if ops:
                message = f"{counted(ops)}, which no source saw on the Neural Engine"
                yield at_ops(
                    self,
                    subject,
                    function,
                    ops,
                    message,
                    help="write rows with `slice_update`, or blend them in with a one-hot mask",
                )
