"""Indices of 16 bits into a table that has more rows."""

from collections.abc import Iterator

from topoc.dsl.diagnostic import Severity
from topoc.dsl.lint.at_ops import at_ops
from topoc.dsl.lint.mil import Function, Op
from topoc.dsl.lint.rule import Evidence, Finding, Rule, Trust
from topoc.dsl.lint.subject import Mil
from topoc.dsl.lint.trace import axis_size

HELD = {"int16": 1 << 15, "uint16": 1 << 16, "int8": 1 << 7, "uint8": 1 << 8}
GATHERS = ("gather", "gather_along_axis")


class Int16Index(Rule):
    """An index is wide enough for every row.

    Token ids were narrowed to 16 bits on the way to the Neural Engine. A vocabulary of more rows
    than that gets the wrong ones, and nothing tells of it.
    """

    severity = Severity.WARNING
    placement = True
    remedy = "Index with int32, and look tokens up on the host."
    evidence = (
        Evidence(
            "token ids become uint16, which is wrong for the vocabulary of Llama 3",
            "pytorch/executorch#7616",
            "2025-01",
            Trust.REPORTED,
        ),
        Evidence(
            "coremltools 9.0 casts indices to int16 for 30,000 rows and leaves int32 for 40,000",
            "coremltools 9.0, converting a gather",
            "2026-11-30",
            Trust.MEASURED,
            toolchain="coremltools 9.0",
        ),
    )
    bad_mil = """
main(token: int32[1]) {
  table: fp16[40000,64] = const()
  narrow: int16[1] = cast(x=token, dtype="int16")
  row: fp16[1,64] = gather(x=table, indices=narrow, axis=0)
  return row
}
"""
    good_mil = """
main(token: int32[1]) {
  table: fp16[30000,64] = const()
  narrow: int16[1] = cast(x=token, dtype="int16")
  row: fp16[1,64] = gather(x=table, indices=narrow, axis=0)
  return row
}
"""

    def _check_mil(self, subject: Mil) -> Iterator[Finding]:
        for function in subject.package.functions:
            ops = [one for one in function.of(*GATHERS) if _is_narrow(function, one)]
            if ops:
                rows = axis_size(function, ops[0], 0)
                dtype = function.type_of(ops[0].operand("indices")).dtype
                message = f"{rows:,} rows are indexed by {dtype}, which does not reach the last"
                yield at_ops(self, subject, function, ops, message, help="index with int32")


def _is_narrow(function: Function, gather: Op) -> bool:
    held = HELD.get(function.type_of(gather.operand("indices")).dtype)
    return held is not None and axis_size(function, gather, 0) > held
