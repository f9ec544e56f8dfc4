"""Squares that leave fp16 before they are summed."""

from collections.abc import Iterator

from topoc.dsl.lint.at_ops import at_ops
from topoc.dsl.lint.mil import Function, Op
from topoc.dsl.lint.rule import Evidence, Finding, Rule, Trust
from topoc.dsl.lint.subject import Mil
from topoc.dsl.lint.trace import CASTS, descends, origin, readers, scalar

SUMS = frozenset({"reduce_sum", "reduce_mean"})
AT_ONCE = ("reduce_sum_square", "reduce_l2_norm")
# What such an op gives has squares that fit.
BOUNDED = frozenset({"sigmoid", "softmax", "tanh", "layer_norm", "l2_norm", "sin", "cos"})


class SquareOverflow(Rule):
    """A sum of squares is taken of values that were scaled first.

    fp16 ends at 65504: a square does so at 255, and a sum of 768 of them much sooner. A norm of an
    embedding whose values reach 150 came out as 0, because the sum was infinite. A cast to fp32 in
    the source is no help, since it is folded away. What squares inside `layer_norm` do is for a
    device to say.
    """

    remedy = "Divide by the greatest magnitude first, or use `layer_norm` over [x, -x]."
    evidence = (
        Evidence(
            "sqrt(sum(x²)) over 768 values up to 150 is infinite in fp16, and the result 0",
            "CoreML-LLM conversion/models/embeddinggemma.py:85-98",
            "2026-04",
            Trust.MEASURED,
            toolchain="coremltools 9.0",
            figure="1.6e7 against 65504",
        ),
    )
    bad_mil = """
main(x: fp16[1,768]) {
  squared: fp16[1,768] = mul(x=x, y=x)
  total: fp16[1,1] = reduce_sum(x=squared, axes=[1], keep_dims=true)
  return total
}
"""
    good_mil = """
main(x: fp16[1,768]) {
  size: fp16[1,768] = abs(x=x)
  peak: fp16[1,1] = reduce_max(x=size, axes=[1], keep_dims=true)
  scaled: fp16[1,768] = real_div(x=x, y=peak)
  squared: fp16[1,768] = mul(x=scaled, y=scaled)
  total: fp16[1,1] = reduce_mean(x=squared, axes=[1], keep_dims=true)
  return total
}
"""

    def _check_mil(self, subject: Mil) -> Iterator[Finding]:
        for function in subject.package.functions:
            ops = [one for one in function.compute if _overflows(function, one)]
            if ops:
                message = f"`{ops[0].kind}` squares in fp16, which ends at |x| = 255"
                way = "divide by the greatest magnitude first, or use `layer_norm` over [x, -x]"
                yield at_ops(self, subject, function, ops, message, help=way)


def _overflows(function: Function, op: Op) -> bool:
    if op.type.dtype != "fp16" or not _squares(function, op):
        return False
    summed = op.kind in AT_ONCE or any(r.kind in SUMS for r in readers(function, op.result, CASTS))
    return summed and not _is_bounded(function, op)


def _squares(function: Function, op: Op) -> bool:
    if op.kind == "mul":
        return op.operand("x") == op.operand("y")
    return op.kind in {"square", *AT_ONCE} or (
        op.kind == "pow" and scalar(function, op.operand("y")) == 2
    )


def _is_bounded(function: Function, op: Op) -> bool:
    """Whether what is squared was scaled by its own greatest magnitude, or has a small range."""
    maker = function.maker(origin(function, op.operand("x"), CASTS))
    if maker is None:
        return False
    if maker.kind in BOUNDED:
        return True
    divisor = maker.operand("y") if maker.kind in {"real_div", "mul"} else None
    return divisor is not None and descends(function, divisor, lambda one: one.kind == "reduce_max")
