"""Two masks that are added to one another."""

from collections.abc import Iterator

from topoc.dsl.diagnostic import Severity
from topoc.dsl.lint.at_ops import at_ops
from topoc.dsl.lint.mil import Function, Op, Operand
from topoc.dsl.lint.rule import Evidence, Finding, Rule, Trust
from topoc.dsl.lint.subject import Mil
from topoc.dsl.lint.trace import CASTS, descends, origin, scalar

LOWEST = -65504.0
DEPTH = 8  # sums of sums; no attention adds more masks
SCORES = frozenset({"matmul", "conv", "linear", "einsum"})


class SummedMasks(Rule):
    """The scores of attention get one mask.

    A mask of -infinity, or of the lowest number, is well by itself: it gives the same bits as one
    of -1e4. Two of them sum to -infinity, and a row that is masked throughout then becomes NaN.
    """

    severity = Severity.WARNING
    remedy = "Join the masks on the host, or fill them with -1e4."
    evidence = (
        Evidence(
            "-6e4 and -6e4 sum to -infinity in fp16, and a softmax of a row of those is NaN",
            "IEEE 754 binary16, computed with PyTorch",
            "2026-11-30",
            Trust.MEASURED,
        ),
        Evidence(
            "a row that is masked throughout becomes NaN after conversion",
            "apple/coremltools#2669, soniqo/speech-swift#342",
            "2026-02",
            Trust.REPORTED,
        ),
        Evidence(
            "-infinity and -1e4 give the same bits where no row is masked throughout",
            "CoreML-LLM docs/SESSION_2026_04_25_MASK_VALUE.md:31-54",
            "2026-04-25",
            Trust.MEASURED,
            device="Mac",
        ),
    )
    bad_mil = """
main(scores: fp16[1,8,1,512], causal: fp16[1,1,1,512], padding: fp16[1,1,1,512]) {
  once: fp16[1,8,1,512] = add(x=scores, y=causal)
  twice: fp16[1,8,1,512] = add(x=once, y=padding)
  y: fp16[1,8,1,512] = softmax(x=twice, axis=-1)
  return y
}
"""
    good_mil = """
main(q: fp16[1,8,1,64], k: fp16[1,8,64,512], hidden: fp16[1,1,1,512], out: fp16[1,1,1,512]) {
  scores: fp16[1,8,1,512] = matmul(x=q, y=k)
  causal: fp16[1,1,1,512] = mul(x=hidden, y=-10000.0)
  padding: fp16[1,1,1,512] = mul(x=out, y=-10000.0)
  once: fp16[1,8,1,512] = add(x=scores, y=causal)
  twice: fp16[1,8,1,512] = add(x=once, y=padding)
  y: fp16[1,8,1,512] = softmax(x=twice, axis=-1)
  return y
}
"""

    def _check_mil(self, subject: Mil) -> Iterator[Finding]:
        for function in subject.package.functions:
            ops = [one for one in function.of("softmax") if _is_masked_twice(function, one)]
            if ops:
                message = "two masks are added before a softmax; a row that both hide becomes NaN"
                way = "join the masks on the host, or fill them with -1e4"
                yield at_ops(self, subject, function, ops, message, help=way)


def _is_masked_twice(function: Function, softmax: Op) -> bool:
    terms = list(_terms(function, softmax.operand("x")))
    masks = [one for one in terms if not descends(function, one, _is_score)]
    if len(masks) == len(terms):
        masks = masks[1:]  # scores that come in from elsewhere
    return len(masks) > 1 and sum(_lowest(function, one) for one in masks) < LOWEST


def _is_score(op: Op) -> bool:
    return op.kind in SCORES


def _terms(function: Function, operand: Operand | None, depth: int = DEPTH) -> Iterator[Operand]:
    """What is summed to a value, through views and sums of sums."""
    found = origin(function, operand, CASTS)
    maker = function.maker(found)
    if maker is not None and maker.kind == "add" and depth:
        yield from _terms(function, maker.operand("x"), depth - 1)
        yield from _terms(function, maker.operand("y"), depth - 1)
    elif found is not None:
        yield found


def _lowest(function: Function, mask: Operand) -> float:
    """The lowest value that a mask can have; the lowest of all where that is not known."""
    literal = function.literal(mask)
    if literal is not None and literal.values and literal.type.dtype != "string":
        return float(min(literal.values))
    maker = function.maker(mask)
    if maker is None:
        return LOWEST
    keys = {"mul": ("x", "y"), "select": ("a", "b")}.get(maker.kind, ())
    numbers = [scalar(function, maker.operand(key)) for key in keys]
    known = [one for one in numbers if one is not None]
    return min(known) if known else LOWEST
