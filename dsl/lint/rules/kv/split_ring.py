"""A slice write that would wrap around."""

from collections.abc import Iterator

from topoc.dsl.lint.rule import Evidence, Finding, Rule, Trust
from topoc.dsl.lint.subject import Subject
from topoc.dsl.model import Write
from topoc.dsl.resolve.selector import listed


class SplitRing(Rule):
    """A batch written by one slice divides the ring.

    A slice is one run of slots. When the tokens of a call do not divide the slots, some call begins
    near the end of the ring and its rows would have to wrap.
    """

    coherence = True
    evidence = (
        Evidence(
            "a second batch of 288 rows would be written to rows 288 to 575 of a ring of 512",
            "CoreML-LLM Sources/CoreMLLLM/Gemma4StatefulMultimodalEngine.swift:1146-1157",
            "2026-05",
            Trust.REPORTED,
        ),
    )
    bad = """
topology ring_that_wraps {
  model "gemma3.json"
  target ane macos15 m4
  context 2048
  kv { all: store state, write slice }
  chunk chunk1 = L0-8
  chunk chunk2 = L9-17 + norm + head(argmax)
  functions decode, prefill(tokens = 48, write = graph)
  allow state.update because "an example"
}
"""
    good = """
topology ring_that_fits {
  model "gemma3.json"
  target ane macos15 m4
  context 2048
  kv { all: store state, write slice }
  chunk chunk1 = L0-8
  chunk chunk2 = L9-17 + norm + head(argmax)
  functions decode, prefill(tokens = 64, write = graph)
  allow state.update because "an example"
}
"""

    def _check(self, subject: Subject) -> Iterator[Finding]:
        for function in subject.topology.functions:
            if function.write != "graph" or function.role == "verify":
                continue
            split = [
                block.index
                for block in subject.owners
                if block.kv.write is Write.SLICE and block.kv.slots % function.tokens
            ]
            if split:
                slots = subject.topology.blocks[split[0]].kv.slots
                message = (
                    f"{function.tokens} rows by slice do not divide {slots} slots ({listed(split)})"
                )
                help_ = f"choose a number of tokens that divides {slots}, or `write = host`"
                yield self.flag(function.span or subject.whole, message, help=help_)
