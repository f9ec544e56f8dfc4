"""An epsilon that fp16 holds as a subnormal number, or as zero."""

from collections.abc import Iterator

from topoc.dsl.diagnostic import Severity
from topoc.dsl.lint.at_ops import at_ops
from topoc.dsl.lint.mil import Function, Op
from topoc.dsl.lint.rule import Evidence, Finding, Rule, Trust
from topoc.dsl.lint.subject import Mil
from topoc.dsl.lint.trace import CASTS, readers, scalar

NORMAL = 2.0**-14  # fp16's smallest normal number, 6.1e-5
ZERO = 2.0**-25  # what is not above it rounds to zero
DIVIDES = frozenset({"rsqrt", "real_div", "inverse", "sqrt"})


class SubnormalEps(Rule):
    """An epsilon is a normal number of fp16.

    An epsilon keeps a division from zero. Below 6.1e-5 it is subnormal in fp16, and a phone was
    seen to take such numbers for zero: the inverse root of zero made a few vectors a thousand times
    too large. A cast to fp32 in the source is no help, since it is folded away. Inside `layer_norm`
    nothing of the kind was seen, and there it is a note.
    """

    remedy = "Use an epsilon of at least 6.2e-5, or `layer_norm` over [x, -x]."
    evidence = (
        Evidence(
            "an RMS norm with an epsilon of 1e-6 gives vectors a thousand times too large",
            "CoreML-LLM docs/PROBE_GEMMA4_VISION_ANE.md:35-43",
            "2026-04",
            Trust.MEASURED,
            toolchain="coremltools 9.0",
            device="iPhone 17 Pro, iOS 26",
        ),
        Evidence(
            "1e-6 is written as 1.013e-6 and 1e-12 as 5.96e-8, both subnormal",
            "coremltools 9.0, converting layer_norm and rsqrt",
            "2026-11-30",
            Trust.MEASURED,
            toolchain="coremltools 9.0",
        ),
    )
    bad_mil = """
main(x: fp16[1,64]) {
  raised: fp16[1,64] = add(x=x, y=1e-6)
  y: fp16[1,64] = rsqrt(x=raised, epsilon=1e-12)
  return y
}
"""
    good_mil = """
main(x: fp16[1,64]) {
  raised: fp16[1,64] = add(x=x, y=1e-4)
  y: fp16[1,64] = rsqrt(x=raised, epsilon=1e-12)
  return y
}
"""

    def _check_mil(self, subject: Mil) -> Iterator[Finding]:
        for function in subject.package.functions:
            yield from self._norms(subject, function)
            ops = [one for one in function.compute if _divides_by_little(function, one)]
            if ops:
                message = f"`{ops[0].kind}` has an epsilon below 6.1e-5, which may count as zero"
                way = "use at least 6.2e-5, or `layer_norm` over [x, -x]"
                yield at_ops(self, subject, function, ops, message, help=way)

    def _norms(self, subject: Mil, function: Function) -> Iterator[Finding]:
        small = [one for one in function.of("layer_norm") if _is_small(_epsilon(function, one))]
        none = [one for one in small if (_epsilon(function, one) or 0.0) <= ZERO]
        kept = [one for one in small if one not in none]
        if none:
            message = "the epsilon of `layer_norm` is zero in fp16, and a row of zeros is divided"
            way = "use an epsilon that fp16 holds"
            yield at_ops(self, subject, function, none, message, help=way)
        if kept:
            message = "the epsilon of `layer_norm` is subnormal in fp16"
            way = "use at least 6.2e-5 where rows may be close to zero"
            severity = Severity.NOTE
            yield at_ops(self, subject, function, kept, message, help=way, severity=severity)


def _is_small(epsilon: float | None) -> bool:
    return epsilon is not None and abs(epsilon) < NORMAL


def _epsilon(function: Function, op: Op) -> float | None:
    """The op's own epsilon, if it is computed with in fp16."""
    operand = op.operand("epsilon")
    wide = function.type_of(operand).dtype == "fp32"
    return None if wide or op.type.dtype != "fp16" else scalar(function, operand)


def _divides_by_little(function: Function, op: Op) -> bool:
    """An inverse whose only guard is small, or a sum of one that goes into a division."""
    if op.kind in {"rsqrt", "inverse"}:
        guard = _added(function, op.operand("x"))
        own = scalar(function, op.operand("epsilon"))  # fp32 or not, it is added to an fp16 value
        return op.type.dtype == "fp16" and _is_small(own if guard is None else guard)
    if op.kind != "add" or op.type.dtype != "fp16":
        return False
    guard = _constant_part(function, op)
    if guard is None or not 0.0 < guard < NORMAL:
        return False
    return any(_divides_by(one, op.result) for one in readers(function, op.result, CASTS))


def _divides_by(op: Op, name: str) -> bool:
    """Whether an op divides by a value: by `y` of a division, or by all that it reads."""
    if op.kind in {"rsqrt", "inverse"}:
        return False  # told at the op itself
    return op.kind in DIVIDES and (op.kind != "real_div" or op.operand("y") == name)


def _added(function: Function, operand: object) -> float | None:
    maker = function.maker(operand) if isinstance(operand, str) else None
    return _constant_part(function, maker) if maker is not None and maker.kind == "add" else None


def _constant_part(function: Function, add: Op) -> float | None:
    found = (scalar(function, add.operand(key)) for key in ("y", "x"))
    return next((one for one in found if one is not None), None)
