"""The choice of the next token, which leaves the Neural Engine."""

from collections.abc import Iterator

from topoc.dsl.diagnostic import Severity
from topoc.dsl.lint.rule import Evidence, Finding, Rule, Trust
from topoc.dsl.lint.subject import Mil, Subject


class ArgmaxTail(Rule):
    """`head(argmax)` ends in operations that the CPU runs.

    Eight or nine operations after the last matrix, softcap and argmax among them, were placed on
    the CPU. They cost half a millisecond to two a step, and save the host 512 kB of logits.
    """

    severity = Severity.NOTE
    placement = True
    evidence = (
        Evidence(
            "8 ops of the last chunk's tail are planned for the CPU, all others for the engine",
            "CoreML-LLM docs/EXPERIMENTS.md:166-173",
            "2026-04-13",
            Trust.MEASURED,
            toolchain="coremltools 9.0, iOS 26",
            device="iPhone 17 Pro; a Mac counts the same",
            figure="plan cost 0.0028; 0.5 to 2 ms by estimate",
        ),
        Evidence(
            "an argmax over 248,320 classes costs 2 ms a step",
            "CoreML-LLM docs/QWEN35_LESSONS.md:284-306",
            "2026-04-28",
            Trust.MEASURED,
            toolchain="coremltools 9.0",
            device="Mac M4",
            figure="2 ms",
        ),
    )
    remedy = "Accept it, or write `head(logits)` and choose on the host."
    bad = """
topology chooses_in_the_graph {
  model "gemma3.json"
  target ane ios18 a17
  context 2048
  chunk chunk1 = L0-8
  chunk chunk2 = L9-17 + norm + head(argmax)
}
"""
    good = """
topology chooses_on_the_host {
  model "gemma3.json"
  target ane ios18 a17
  context 2048
  chunk chunk1 = L0-8
  chunk chunk2 = L9-17 + norm + head(logits)
}
"""
    bad_mil = """
main(logits: fp16[1,262144]) {
  best: int32[1,1] = reduce_argmax(x=logits, axis=-1, keep_dims=true)
  return best
}
"""
    good_mil = """
main(logits: fp16[1,262144]) {
  capped: fp16[1,262144] = tanh(x=logits)
  return capped
}
"""

    def _check(self, subject: Subject) -> Iterator[Finding]:
        for chunk, part, head in subject.heads():
            if head.mode == "argmax":
                message = f"the argmax of `{chunk.name}` leaves the Neural Engine"
                words = "8 or 9 operations run on the CPU, 0.5 to 2 ms a step"
                help_ = "budget for it, or write `head(logits)` and choose on the host"
                span = part.span or subject.whole
                yield self.flag(span, message, words, chunk=chunk.name, help=help_)

    def _check_mil(self, subject: Mil) -> Iterator[Finding]:
        from topoc.dsl.lint.at_ops import at_ops

        for function in subject.package.functions:
            ops = list(function.of("reduce_argmax"))
            if ops:
                message = "`reduce_argmax` and the ops around it run on the CPU"
                way = "allow for 0.5 to 2 ms a step, or give logits"
                yield at_ops(self, subject, function, ops, message, help=way)
