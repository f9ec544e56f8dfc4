"""Positions as fp16."""

from collections.abc import Iterator

from topoc.dsl.diagnostic import Severity
from topoc.dsl.lint.at_ops import at_ops
from topoc.dsl.lint.mil import Function, Op
from topoc.dsl.lint.rule import Evidence, Finding, Rule, Trust
from topoc.dsl.lint.subject import Mil
from topoc.dsl.lint.trace import CASTS, other, readers

PRODUCTS = frozenset({"mul", "matmul", "real_div"})
WAVES = frozenset({"sin", "cos"})


class Fp16Position(Rule):
    """Angles are not computed from positions in fp16.

    fp16 has no number between 2048 and 2050: from there on, positions share their angles. Tables
    of cosines and sines that were computed in fp64 have no such limit.
    """

    severity = Severity.WARNING
    remedy = "Compute the angles on the host, and pass rows of cosines and sines."
    evidence = (
        Evidence(
            "2049 and 4097 have no value of their own in fp16",
            "IEEE 754 binary16: 11 bits of significand",
            "2008-08",
            Trust.MEASURED,
        ),
        Evidence(
            "rotary angles that are computed in half precision drift with the position",
            "Lightning-AI/litgpt#1031",
            "2024-03",
            Trust.REPORTED,
        ),
    )
    bad_mil = """
main(position: int32[1], x: fp16[1,32]) {
  p: fp16[1] = cast(x=position, dtype="fp16")
  angles: fp16[1,32] = mul(x=p, y=fp16[1,32])
  turned: fp16[1,32] = cos(x=angles)
  y: fp16[1,32] = mul(x=x, y=turned)
  return y
}
"""
    good_mil = """
main(cosines: fp16[1,32], x: fp16[1,32], mask: int32[1,32]) {
  y: fp16[1,32] = mul(x=x, y=cosines)
  m: fp16[1,32] = cast(x=mask, dtype="fp16")
  hidden: fp16[1,32] = mul(x=m, y=-10000.0)
  z: fp16[1,32] = add(x=y, y=hidden)
  return z
}
"""

    def _check_mil(self, subject: Mil) -> Iterator[Finding]:
        for function in subject.package.functions:
            ops = [one for one in function.of("cast") if _is_position(function, one)]
            if ops:
                message = "positions become fp16 and are multiplied; beyond 2048 they merge"
                way = "pass rows of cosines and sines that the host looks up"
                yield at_ops(self, subject, function, ops, message, help=way)


def _is_position(function: Function, cast: Op) -> bool:
    """An integer that becomes fp16, and is multiplied by frequencies."""
    source = function.type_of(cast.operand("x")).dtype
    if cast.type.dtype != "fp16" or "int" not in source:
        return False
    return any(_by_frequencies(function, cast, op) for op in readers(function, cast.result))


def _by_frequencies(function: Function, cast: Op, product: Op) -> bool:
    """The other factor is a list of constants, or the result is an angle.

    A mask is multiplied too: by one number.
    """
    if product.kind not in PRODUCTS:
        return False
    factor = other(function, product, cast.result)
    listed = function.is_constant(factor) and function.type_of(factor).elements > 1
    after = readers(function, product.result, CASTS)
    return listed or any(one.kind in WAVES for one in after)
