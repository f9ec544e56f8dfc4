"""Rotary angles that the program looks up itself."""

from collections.abc import Iterator

from topoc.dsl.diagnostic import Severity
from topoc.dsl.lint.at_ops import at_ops
from topoc.dsl.lint.rule import Evidence, Finding, Rule, Trust
from topoc.dsl.lint.subject import Mil
from topoc.dsl.lint.trace import is_angle_lookup


class RopeGather(Rule):
    """Rows of cosines and sines come in as inputs.

    A lookup by position, with the comparisons that guard its index, was seen on the CPU. One
    published converter bakes the tables in and looks up all the same.
    """

    severity = Severity.NOTE
    placement = True
    remedy = "Pass the rows of cosines and sines as fp16 inputs."
    evidence = (
        Evidence(
            "lookups by position and the comparisons around them are among 22 ops on the CPU",
            "CoreML-LLM docs/LFM2_CONVERSION_FINDINGS.md:152-153",
            "2026-04-28",
            Trust.MEASURED,
            device="Mac, macOS 26.0.1",
        ),
        Evidence(
            "another converter looks angles up in the program and ships it",
            "Anemll/Anemll anemll/models/llama_model.py",
            "2026-01",
            Trust.CONTESTED,
        ),
    )
    bad_mil = """
main(x: fp16[1,128], position: int32[1]) {
  table: fp16[2048,128] = const()
  row: fp16[1,128] = gather(x=table, indices=position, axis=0)
  y: fp16[1,128] = mul(x=x, y=row)
  return y
}
"""
    good_mil = """
main(x: fp16[1,128], cosines: fp16[1,128]) {
  y: fp16[1,128] = mul(x=x, y=cosines)
  return y
}
"""

    def _check_mil(self, subject: Mil) -> Iterator[Finding]:
        for function in subject.package.functions:
            ops = [one for one in function.of("gather") if is_angle_lookup(function, one)]
            if ops:
                message = f"`{function.name}` looks up angles by position, which runs on the CPU"
                way = "pass the rows of cosines and sines as inputs"
                yield at_ops(self, subject, function, ops, message, help=way)
