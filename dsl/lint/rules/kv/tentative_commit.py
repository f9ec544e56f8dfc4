"""A verify that writes its candidates into the cache."""

from collections.abc import Iterator

from topoc.dsl.lint.rule import Evidence, Finding, Rule, Trust
from topoc.dsl.lint.subject import Subject


class TentativeCommit(Rule):
    """A verify call commits nothing.

    Its candidates are guesses, and most of them are rejected. What a graph has written into a ring
    has evicted rows that the next step needs, so the host stores the accepted ones.
    """

    coherence = True
    evidence = (
        Evidence(
            "an application's verify gives rows, of which its host stores the accepted ones",
            "CoreML-LLM Sources/CoreMLLLM/ChunkedEngine.swift:2654-2683",
            "2026-05",
            Trust.REPORTED,
        ),
    )
    bad = """
topology commit_guesses {
  model "gemma3.json"
  target ane ios18 a17
  context 2048
  chunk chunk1 = L0-8
  chunk chunk2 = L9-17 + norm + head(argmax)
  functions decode, verify(tokens = 3, write = graph)
}
"""
    good = """
topology propose_guesses {
  model "gemma3.json"
  target ane ios18 a17
  context 2048
  chunk chunk1 = L0-8
  chunk chunk2 = L9-17 + norm + head(argmax)
  functions decode, verify(tokens = 3)
}
"""

    def _check(self, subject: Subject) -> Iterator[Finding]:
        for function in subject.topology.functions:
            if function.role == "verify" and function.write == "graph":
                message = f"`{function.name}` would commit candidates that may be rejected"
                help_ = "write `write = host`, or leave it out"
                yield self.flag(function.span or subject.whole, message, help=help_)
