"""A query that is scaled to undo the scale of fused attention."""

from collections.abc import Iterator

from topoc.dsl.lint.at_ops import at_ops
from topoc.dsl.lint.mil import Function, Op
from topoc.dsl.lint.rule import Evidence, Finding, Rule, Trust
from topoc.dsl.lint.subject import Mil
from topoc.dsl.lint.trace import CASTS, origin, scalar


class ScaledFusedAttention(Rule):
    """Attention of another scale than 1/√d is written out.

    The fused op divides by √d and takes no scale. Whoever multiplies the query by √d before it
    gets products that leave fp16: torch shows NaN, and Core ML gives finite numbers that are wrong.
    """

    remedy = "Write `matmul`, `softmax` and `matmul`, with the scale in the query's norm."
    evidence = (
        Evidence(
            "a query that is multiplied by √d overflows in the product with the keys",
            "CoreML-LLM docs/DEPLOYMENT.md:87-95",
            "2026-04",
            Trust.MEASURED,
            toolchain="target iOS 18",
        ),
    )
    bad_mil = """
main(q: fp16[1,8,1,256], k: fp16[1,8,512,256], v: fp16[1,8,512,256]) {
  raised: fp16[1,8,1,256] = mul(x=q, y=16.0)
  y: fp16[1,8,1,256] = scaled_dot_product_attention(query=raised, key=k, value=v)
  return y
}
"""
    good_mil = """
main(q: fp16[1,8,1,256], k: fp16[1,8,512,256], v: fp16[1,8,512,256]) {
  y: fp16[1,8,1,256] = scaled_dot_product_attention(query=q, key=k, value=v)
  return y
}
"""

    def _check_mil(self, subject: Mil) -> Iterator[Finding]:
        for function in subject.package.functions:
            fused = function.of("scaled_dot_product_attention")
            ops = [one for one in fused if _is_scaled(function, one)]
            if ops:
                message = "a query is scaled up before fused attention, whose scale is fixed"
                way = "write `matmul`, `softmax` and `matmul` in its place"
                yield at_ops(self, subject, function, ops, message, help=way)


def _is_scaled(function: Function, attention: Op) -> bool:
    maker = function.maker(origin(function, attention.operand("query"), CASTS))
    if maker is None or maker.kind != "mul":
        return False
    factors = [scalar(function, maker.operand(key)) for key in ("x", "y")]
    return any(one is not None and abs(one) > 1.0 for one in factors)
