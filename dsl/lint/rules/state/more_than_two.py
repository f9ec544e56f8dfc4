"""More states in a program than the Neural Engine was seen to run."""

from collections.abc import Iterator

from topoc.dsl.lint.rule import Evidence, Finding, Rule, Trust
from topoc.dsl.lint.subject import Mil, Subject
from topoc.dsl.measure import states
from topoc.dsl.suggest import quoted


class MoreThanTwo(Rule):
    """A program keeps two states at most.

    Three compile, and a compute plan shows them on the Neural Engine. The first prediction then
    fails. The CPU runs the same package and gives wrong text, so that nothing but a device tells.
    """

    placement = True
    evidence = (
        Evidence(
            "three states (KV, convolution, recurrence) compile and fail in the first prediction",
            "CoreML-LLM docs/MLSTATE_PATTERN.md:17-30",
            "2026-04-28",
            Trust.MEASURED,
            toolchain="coremltools 9.0, iOS 18 target",
            device="Mac M4",
            figure="status=0x1d; 99.8 % of the ops planned for the Neural Engine",
        ),
        Evidence(
            "with the KV cache as the only state, and the rest as inputs and outputs, it runs",
            "CoreML-LLM docs/SESSION_2026_04_28_QWEN35_2K_ANE.md:219-233",
            "2026-04-28",
            Trust.MEASURED,
            toolchain="coremltools 9.0",
            device="Mac M4",
            figure="33.1 to 51.0 tok/s for 0.8B, 24.6 to 32.1 for 2B",
        ),
    )
    remedy = (
        "Keep the largest cache as a state and the others `store io`, or name one state for all."
    )
    error_texts = (
        "ANEProgramProcessRequestDirect() Failed with status=0x1d : statusType=0x9",
        "ANEProgramProcessRequestDirect Failed with status=0x1d",
    )
    bad = """
topology three_states {
  model "gemma3.json"
  target ane ios18 a17
  context 2048
  kv {
    L0:    store state(a)
    L1:    store state(b)
    L2-17: store state(c)
  }
  chunk chunk1 = L0-8
  chunk chunk2 = L9-17 + norm + head(argmax)
  allow state.update because "an example"
}
"""
    good = """
topology one_state {
  model "gemma3.json"
  target ane ios18 a17
  context 2048
  kv { all: store state(kv) }
  chunk chunk1 = L0-8
  chunk chunk2 = L9-17 + norm + head(argmax)
  allow state.update because "an example"
}
"""
    bad_mil = """
main(x: fp16[1,64], k: state fp16[1,1,512,64], v: state fp16[1,1,512,64], c: state fp16[1,64,4]) {
  y: fp16[1,64] = exp(x=x)
  return y
}
"""
    good_mil = """
main(x: fp16[1,64], k: state fp16[1,1,512,64], v: state fp16[1,1,512,64]) {
  y: fp16[1,64] = exp(x=x)
  return y
}
"""

    def _check(self, subject: Subject) -> Iterator[Finding]:
        limit = subject.profile.limit("states per chunk")
        for chunk, _ in subject.placed():
            names = states(subject.topology, chunk)
            severity = limit.rank(len(names))
            if severity is not None:
                message = f"`{chunk.name}` keeps {len(names)} states, and more than two do not run"
                help_ = "give several caches one state: `all: store state(NAME)`"
                words = quoted(names, "and")
                at = chunk.span or subject.whole
                yield self.flag(at, message, words, chunk=chunk.name, severity=severity, help=help_)

    def _check_mil(self, subject: Mil) -> Iterator[Finding]:
        from topoc.dsl.lint.at_ops import at_function

        limit = subject.profile.limit("states per chunk")
        for function in subject.package.functions:
            count = len(function.states)
            severity = limit.rank(count)
            if severity is not None:
                message = f"`{function.name}` keeps {count} states, and more than two do not run"
                way = "keep the largest as a state, and pass the others in and out"
                yield at_function(self, subject, function, message, help=way, severity=severity)
