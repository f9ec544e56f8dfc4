"""Integers of 64 bits."""

from collections.abc import Iterator

from topoc.dsl.diagnostic import Severity
from topoc.dsl.lint.at_ops import at_function, at_ops
from topoc.dsl.lint.rule import Evidence, Finding, Rule, Trust
from topoc.dsl.lint.subject import Mil

WIDE = frozenset({"int64", "uint64"})


class Int64(Rule):
    """Integers have 32 bits.

    A state that was indexed by a 64-bit number lost its place, and those who build such models
    cast every index to 32 bits since.
    """

    severity = Severity.WARNING
    placement = True
    remedy = "Cast indices and the results of argmax to int32."
    evidence = (
        Evidence(
            "64-bit indices into a state break its placement",
            "CoreML-LLM docs/EXPERIMENTS.md:57 and docs/ARCHITECTURE.md:34",
            "2026-04-13",
            Trust.MEASURED,
            device="iPhone 17 Pro, iOS 26",
        ),
    )
    bad_mil = """
main(x: fp16[1,1000]) {
  best: int64[1] = reduce_argmax(x=x, axis=-1, keep_dims=false)
  return best
}
"""
    good_mil = """
main(x: fp16[1,1000]) {
  best: int32[1] = reduce_argmax(x=x, axis=-1, keep_dims=false)
  return best
}
"""

    def _check_mil(self, subject: Mil) -> Iterator[Finding]:
        way = "use int32"
        for function in subject.package.functions:
            for one in function.inputs:
                if one.type.dtype in WIDE:
                    message = f"`{one.name}` is {one.type.dtype}, which breaks placement"
                    yield at_function(self, subject, function, message, part=one.name, help=way)
            ops = [op for op in function.compute if any(o.type.dtype in WIDE for o in op.outputs)]
            if ops:
                message = f"`{ops[0].kind}` gives {ops[0].type.dtype}, which breaks placement"
                yield at_ops(self, subject, function, ops, message, help=way)
