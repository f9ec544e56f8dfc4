"""KV heads that are padded in the hope that a state is then accepted."""

from collections.abc import Iterator

from topoc.dsl.diagnostic import Severity
from topoc.dsl.lint.rule import Evidence, Finding, Rule, Trust
from topoc.dsl.lint.subject import Subject
from topoc.dsl.resolve.selector import listed


class PaddedHeads(Rule):
    """Padding the KV heads of a state does not make the Neural Engine take it.

    The guess was that one KV head is too narrow for an engine that works in tiles of 32. It was
    tried: the padded program computes the same numbers, is refused with the same error, and its
    cache is 32 times as large.
    """

    severity = Severity.NOTE
    placement = True
    evidence = (
        Evidence(
            "one KV head padded to 32 gives the same error -14; on the CPU the program runs",
            "CoreML-LLM docs/EXPERIMENTS.md:132-138",
            "2026-04-15",
            Trust.MEASURED,
            toolchain="coremltools 9.0, iOS 26",
            device="Mac, iPhone 17 Pro",
            figure="error code -14 while saving; 49 ms on the CPU",
        ),
    )
    remedy = "Leave out `row padded(heads = …)`; keep the cache `store io`, or `write slice`."
    error_texts = ("Failed to build the model execution plan",)
    bad = """
topology padded_state {
  model "gemma4.json"
  target ane ios18 a19
  context 2048
  kv { all: store state(kv), row padded(heads = 32) }
  chunk chunk1 = ple + L0-7
  chunk chunk2 = L8-14
  chunk chunk3 = L15-24
  chunk chunk4 = L25-34 + norm + head(argmax)
  allow state.update because "an example"
}
"""
    good = """
topology plain_state {
  model "gemma4.json"
  target ane ios18 a19
  context 2048
  kv { all: store state(kv) }
  chunk chunk1 = ple + L0-7
  chunk chunk2 = L8-14
  chunk chunk3 = L15-24
  chunk chunk4 = L25-34 + norm + head(argmax)
  allow state.update because "an example"
}
"""

    def _check(self, subject: Subject) -> Iterator[Finding]:
        held = [one for chunk, _ in subject.placed() for one in subject.held(chunk)]
        padded = [one for one in held if one.kv.padded_heads]
        if padded:
            heads = padded[0].kv.padded_heads
            layers = listed(sorted({one.index for one in padded}))
            message = f"{heads} KV heads in place of their own do not avert error -14 ({layers})"
            words = "tried on 2026-04-15: the same error, and a cache so many times as large"
            help_ = "leave out `row padded(heads = …)`"
            yield self.flag(subject.at(padded[0], "row"), message, words, help=help_)
