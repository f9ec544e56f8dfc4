"""An input or output without axes."""

from collections.abc import Iterator

from topoc.dsl.lint.at_ops import at_function
from topoc.dsl.lint.rule import Evidence, Finding, Rule, Trust
from topoc.dsl.lint.subject import Mil


class Rank0Io(Rule):
    """Inputs and outputs have at least one axis.

    A number without axes is fine inside a program. As an input it was refused, by the converter or
    by the runtime.
    """

    remedy = "Pass a tensor of shape (1,)."
    evidence = (
        Evidence(
            "a scalar without axes is refused as an input",
            "CoreML-LLM docs/CONVERSION.md:268",
            "2026-04",
            Trust.MEASURED,
            toolchain="coremltools 9.0",
        ),
    )
    bad_mil = """
main(x: fp16[1,64], position: int32[]) {
  p: fp16[] = cast(x=position, dtype="fp16")
  y: fp16[1,64] = add(x=x, y=p)
  return y
}
"""
    good_mil = """
main(x: fp16[1,64], position: int32[1]) {
  p: fp16[1] = cast(x=position, dtype="fp16")
  y: fp16[1,64] = add(x=x, y=p)
  return y
}
"""

    def _check_mil(self, subject: Mil) -> Iterator[Finding]:
        for function in subject.package.functions:
            given = [("input", one.name, one.type) for one in function.inputs]
            given += [("output", name, function.type_of(name)) for name in function.outputs]
            for what, name, kind in given:
                if kind.rank == 0 and kind.bits:
                    message = f"{what} `{name}` has no axes, which Core ML was seen to refuse"
                    way = "give it the shape (1,)"
                    yield at_function(self, subject, function, message, part=name, help=way)
