"""A state whose rows are no multiple of 32 wide."""

from collections.abc import Iterator

from topoc.dsl.diagnostic import Severity
from topoc.dsl.lint.rule import Evidence, Finding, Rule, Trust
from topoc.dsl.lint.subject import Mil, Subject
from topoc.dsl.resolve.selector import listed

MULTIPLE = 32


class OddWidth(Rule):
    """The last axis of a state is a multiple of 32.

    A small network with a state 270 wide failed on the Neural Engine and ran with one of 256. Other
    people padded a narrow state and nothing changed. The two were different programs, so that an
    odd width is where to look first if a package with states does not load.
    """

    severity = Severity.NOTE
    placement = True
    evidence = (
        Evidence(
            "a state 270 wide fails on the Neural Engine, one 256 wide runs",
            "apple/coremltools#2631",
            "2025-12-19",
            Trust.CONTESTED,
            toolchain="coremltools 9.0, macOS 15.2",
            device="Mac M4",
        ),
        Evidence(
            "padding a state from 3 to 16 did not help a program of two states",
            "CoreML-LLM docs/LFM2_CONVERSION_FINDINGS.md:61-90",
            "2026-04-28",
            Trust.CONTESTED,
            toolchain="coremltools 9.0, macOS 26.0.1",
            device="Mac",
        ),
    )
    remedy = "If the package does not load, keep the cache `store io`."
    bad = """
topology narrow_rows {
  model "narrow.json"
  target ane ios18 a17
  context 2048
  kv { all: store state(kv) }
  chunk chunk1 = L0-1 + norm + head(argmax)
  allow state.update because "an example"
}
"""
    good = """
topology even_rows {
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
main(x: fp16[1,64], kv: state fp16[1,1,512,80]) {
  y: fp16[1,64] = exp(x=x)
  return y
}
"""
    good_mil = """
main(x: fp16[1,64], kv: state fp16[1,1,512,96]) {
  y: fp16[1,64] = exp(x=x)
  return y
}
"""

    def _check(self, subject: Subject) -> Iterator[Finding]:
        for chunk, _ in subject.placed():
            held = [one for one in subject.held(chunk) if not one.kv.padded]
            odd = [one for one in held if subject.layer(one.index).head_dim % MULTIPLE]
            if odd:
                width = subject.layer(odd[0].index).head_dim
                layers = listed([one.index for one in odd])
                message = f"`{chunk.name}` keeps rows {width} wide in a state ({layers})"
                words = f"no multiple of {MULTIPLE}"
                help_ = "if the package does not load, try `store io` before anything else"
                span = subject.at(odd[0], "store")
                yield self.flag(span, message, words, chunk=chunk.name, help=help_)

    def _check_mil(self, subject: Mil) -> Iterator[Finding]:
        from topoc.dsl.lint.at_ops import at_function

        for function in subject.package.functions:
            for state in function.states:
                width = state.type.shape[-1] if state.type.shape else MULTIPLE
                if width % MULTIPLE:
                    message = f"state `{state.name}` is {width} wide, no multiple of {MULTIPLE}"
                    way = "if the package does not load, pass the cache in and out"
                    yield at_function(self, subject, function, message, part=state.name, help=way)
