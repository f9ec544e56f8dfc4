"""Attention that sees less than the checkpoint."""

from collections.abc import Iterator
from operator import lt

from topoc.dsl.diagnostic import Severity
from topoc.dsl.lint.gather import by_window
from topoc.dsl.lint.rule import Evidence, Finding, Rule, Trust
from topoc.dsl.lint.subject import Subject


class NarrowedAttention(Rule):
    """A layer that sees less than it was trained to see answers otherwise.

    Up to the narrower window nothing changes. Beyond it positions are lost that the checkpoint
    attends to, and recall of distant text suffers first.
    """

    severity = Severity.WARNING
    evidence = (
        Evidence(
            "full layers cut to 2,048 positions run as fast at 8,192 as at 2,048, and forget",
            "CoreML-LLM docs/EXPERIMENTS.md:18-23",
            "2026-04",
            Trust.MEASURED,
            toolchain="coremltools 9.0, iOS 26",
            device="iPhone 17 Pro, Gemma 4 E2B",
            figure="31 tok/s; wrong answers beyond the window",
        ),
    )
    remedy = "Measure the difference with `topoc verify`, and allow this with what you found."
    bad = """
topology narrowed {
  model "gemma3.json"
  target ane ios18 a17
  context 2048
  attention { full: windowed_full(window = 1024) }
  chunk chunk1 = L0-8
  chunk chunk2 = L9-17 + norm + head(argmax)
}
"""
    good = """
topology as_trained {
  model "gemma3.json"
  target ane ios18 a17
  context 2048
  attention { full: full }
  chunk chunk1 = L0-8
  chunk chunk2 = L9-17 + norm + head(argmax)
}
"""

    def _check(self, subject: Subject) -> Iterator[Finding]:
        for span, window, layers in by_window(subject, lt):
            message = f"{layers} see {window} positions, fewer than the checkpoint's"
            words = f"the output can differ from position {window} on"
            help_ = "measure the difference, and allow it with what you found"
            yield self.flag(span, message, words, help=help_)
