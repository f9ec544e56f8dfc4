"""An input that nothing is computed from."""

from collections.abc import Iterator

from topoc.dsl.diagnostic import Severity
from topoc.dsl.lint.at_ops import at_function
from topoc.dsl.lint.mil import Function
from topoc.dsl.lint.rule import Evidence, Finding, Rule, Trust
from topoc.dsl.lint.subject import Mil
from topoc.dsl.lint.trace import CASTS, readers


class DeadInput(Rule):
    """Every input has a part in some output.

    A host fills it at each step for nothing. Where a runtime insists on its set of inputs there is
    no other way, and that is what a features profile is for. coremltools keeps such an input alive
    with an `identity` that nobody reads.
    """

    severity = Severity.NOTE
    remedy = "Leave the input out, unless the runtime that feeds it insists."
    evidence = (
        Evidence(
            "an input that is not used gains an `identity` called NAME_tmp",
            "coremltools 9.0, pass handle_unused_inputs",
            "2026-11-30",
            Trust.MEASURED,
            toolchain="coremltools 9.0",
        ),
    )
    bad_mil = """
main(x: fp16[1,64], indicator: fp16[1,1]) {
  indicator_tmp: fp16[1,1] = identity(x=indicator)
  y: fp16[1,64] = exp(x=x)
  return y
}
"""
    good_mil = """
main(x: fp16[1,64], indicator: fp16[1,1]) {
  y: fp16[1,64] = mul(x=x, y=indicator)
  return y
}
"""

    def _check_mil(self, subject: Mil) -> Iterator[Finding]:
        for function in subject.package.functions:
            for one in function.inputs:
                if _is_dead(function, one.name):
                    message = f"nothing is computed from input `{one.name}`"
                    way = "leave it out, unless the runtime that feeds it insists"
                    yield at_function(self, subject, function, message, part=one.name, help=way)


def _is_dead(function: Function, name: str) -> bool:
    """Whether no op computes with a value, no block gives it, and no output is a view of it."""
    given = {*function.outputs, *(o for op in function.ops for b in op.blocks for o in b.outputs)}
    reached = (one for one in (name, *_names(function, name)))
    return not given.intersection(reached) and not any(readers(function, name, CASTS))


def _names(function: Function, name: str) -> Iterator[str]:
    for op in function.readers(name):
        if op.kind in CASTS:
            yield from (one.name for one in op.outputs)
