"""Calls of several tokens on a state, in a package that also decodes."""

from collections.abc import Iterator

from topoc.dsl.lint.rule import Evidence, Finding, Rule, Trust
from topoc.dsl.lint.subject import Subject
from topoc.dsl.suggest import quoted


class BatchInSharedPackage(Rule):
    """On a phone, a call of several tokens that owns states has a package of its own.

    A second function of the same package, with four or eight tokens a call, did not compile on a
    phone in any form: two states or one, three chunks or four, convolutions or linear layers. Macs
    took the same packages and ran them seven times as fast as single tokens.
    """

    placement = True
    evidence = (
        Evidence(
            "packages with a second function of 4 or 8 tokens and states do not compile on a phone",
            "CoreML-LLM docs/SESSION_2026_04_26_STAGE3_PREFILL_BN.md:27-73",
            "2026-04-26",
            Trust.MEASURED,
            toolchain="coremltools 9.0, iOS 26",
            device="iPhone 17 Pro; a Mac took them",
            figure="ANECCompile() FAILED 11",
        ),
        Evidence(
            "a package with one function of 288 tokens compiles; the host copies the states",
            "CoreML-LLM docs/MLSTATE_MULTIMODAL_PROBE.md:12-37",
            "2026-04-26",
            Trust.MEASURED,
            toolchain="coremltools 9.0, iOS 26",
            device="iPhone 17 Pro",
            figure="7.3 s to compile, 93.3 % of the ops planned for the Neural Engine",
        ),
    )
    remedy = "Give the function a package of its own: `package = separate`."
    error_texts = (
        "ANECCompile FAILED 11",
        "_ANECompiler : ANECCompile() FAILED (11)",
    )
    bad = """
topology batch_beside_decode {
  model "gemma3.json"
  target ane ios18 a17
  context 2048
  kv { all: store state(kv) }
  chunk chunk1 = L0-8
  chunk chunk2 = L9-17 + norm + head(argmax)
  functions decode, prefill(tokens = 8, write = graph)
  allow state.update because "an example"
}
"""
    good = """
topology batch_apart {
  model "gemma3.json"
  target ane ios18 a17
  context 2048
  kv { all: store state(kv) }
  chunk chunk1 = L0-8
  chunk chunk2 = L9-17 + norm + head(argmax)
  functions decode, prefill(tokens = 8, package = separate)
  allow state.update because "an example"
}
"""

    def _check(self, subject: Subject) -> Iterator[Finding]:
        if not subject.profile.phone:
            return
        holding = [(chunk, all_) for chunk, all_ in subject.placed() if subject.held(chunk)]
        for function in subject.topology.functions:
            names = [chunk.name for chunk, all_ in holding if function in all_ and len(all_) > 1]
            if names and function.tokens > 1 and not function.separate:
                message = f"`{function.name}` shares packages that own states with other functions"
                words = f"in {quoted(names, 'and')}"
                help_ = "add `package = separate`"
                yield self.flag(function.span or subject.whole, message, words, help=help_)
