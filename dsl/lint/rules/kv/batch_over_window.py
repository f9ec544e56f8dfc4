"""A call that writes more rows than a cache has slots."""

from collections.abc import Iterator

from topoc.dsl.lint.rule import Evidence, Finding, Rule, Trust
from topoc.dsl.lint.subject import Subject
from topoc.dsl.resolve.selector import listed


class BatchOverWindow(Rule):
    """A call that writes in the graph fits into every cache that it writes.

    With more tokens than slots a row would be overwritten within its own call, before all queries
    that see it have run. The host keeps the last rows and has no such limit.
    """

    coherence = True
    evidence = (
        Evidence(
            "rows of a batch replace rows that its earlier queries still see, once a ring is full",
            "CoreML-LLM Sources/CoreMLLLM/Gemma4StatefulEngine.swift:703-705",
            "2026-05",
            Trust.REPORTED,
        ),
    )
    bad = """
topology batch_too_long {
  model "gemma3.json"
  target ane ios18 a17
  context 2048
  chunk chunk1 = L0-8
  chunk chunk2 = L9-17 + norm + head(argmax)
  functions decode, prefill(tokens = 1024, write = graph)
}
"""
    good = """
topology batch_that_fits {
  model "gemma3.json"
  target ane ios18 a17
  context 2048
  chunk chunk1 = L0-8
  chunk chunk2 = L9-17 + norm + head(argmax)
  functions decode, prefill(tokens = 512, write = graph)
}
"""

    def _check(self, subject: Subject) -> Iterator[Finding]:
        for function in subject.topology.functions:
            if function.write != "graph" or function.role == "verify":
                continue
            small = [b.index for b in subject.owners if b.kv.slots < function.tokens]
            if small:
                slots = min(subject.topology.blocks[at].kv.slots for at in small)
                message = (
                    f"`{function.name}` writes {function.tokens} rows into {slots} slots"
                    f" ({listed(small)})"
                )
                help_ = f"use at most {slots} tokens, or `write = host`"
                yield self.flag(function.span or subject.whole, message, help=help_)
