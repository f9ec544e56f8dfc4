"""Ops that no source saw on the Neural Engine."""

from collections.abc import Iterator

from topoc.dsl.diagnostic import Severity
from topoc.dsl.lint.at_ops import at_ops
from topoc.dsl.lint.mil import Op
from topoc.dsl.lint.placement import SEEN, TOLD
from topoc.dsl.lint.rule import Evidence, Finding, Rule, Trust
from topoc.dsl.lint.subject import Mil

NAMED = 4  # kinds that a message lists


class OffList(Rule):
    """Some ops were seen on the Neural Engine, and of the others nothing is known.

    Absence from the list is no fault: it says that a device has to be asked. `topoc lint --ops`
    shows all kinds of op with what is expected of them.
    """

    severity = Severity.NOTE
    placement = True
    remedy = "Ask a device for its compute plan, and hold it against `topoc lint --ops`."
    evidence = (
        Evidence(
            "ops of Qwen3.5 that stay on the Neural Engine, by compute plan",
            "CoreML-LLM docs/QWEN35_ROADMAP.md:69-73,108-133",
            "2026-04",
            Trust.CONTESTED,
            toolchain="coremltools 9.0, target iOS 18",
            device="Mac",
        ),
        Evidence(
            "the body of Gemma 4 stays on the Neural Engine as a whole",
            "CoreML-LLM docs/THREE_CHUNK_MAC_BENCH.md:57-65",
            "2026-04-24",
            Trust.CONTESTED,
            device="Mac",
        ),
    )
    bad_mil = """
main(x: fp16[1,64]) {
  y: fp16[1,64] = erf(x=x)
  return y
}
"""
    good_mil = """
main(x: fp16[1,64]) {
  w: fp16[64,64] = constexpr_lut_to_dense(indices=uint4[64,64], lut=fp16[1,1,16,1])
  y: fp16[1,64] = linear(x=x, weight=w)
  z: fp16[1,64] = gelu(x=y, mode="TANH_APPROXIMATION")
  return z
}
"""

    def _check_mil(self, subject: Mil) -> Iterator[Finding]:
        for function in subject.package.functions:
            kinds: dict[str, Op] = {}
            for op in function.compute:
                if op.kind not in SEEN and op.kind not in TOLD:
                    kinds.setdefault(op.kind, op)
            if kinds:
                listed = ", ".join(f"`{one}`" for one in sorted(kinds)[:NAMED])
                more = f" and {len(kinds) - NAMED} more" if len(kinds) > NAMED else ""
                message = f"no source saw {listed}{more} on the Neural Engine"
                way = "ask a device for its compute plan"
                yield at_ops(self, subject, function, list(kinds.values()), message, help=way)
