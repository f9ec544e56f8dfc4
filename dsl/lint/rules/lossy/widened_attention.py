"""Attention that sees more than the checkpoint."""

from collections.abc import Iterator
from operator import gt

from topoc.dsl.diagnostic import Severity
from topoc.dsl.lint.gather import by_window
from topoc.dsl.lint.rule import Evidence, Finding, Rule, Trust
from topoc.dsl.lint.subject import Subject


class WidenedAttention(Rule):
    """A layer that sees more than it was trained to see answers otherwise.

    A sliding layer has never met keys beyond its window. With more of them its softmax spreads, and
    nothing says that the answer gets better.
    """

    severity = Severity.WARNING
    evidence = (
        Evidence(
            "a runtime that gives all layers the mask of the full ones can't drive such a model",
            "huggingface/swift-transformers#330",
            "2026-03-08",
            Trust.REPORTED,
            toolchain="swift-transformers",
            device="models of mixed attention",
        ),
    )
    remedy = "Leave sliding layers their window, or measure the difference and allow this."
    bad = """
topology widened {
  model "gemma3.json"
  target ane ios18 a17
  context 2048
  attention { sliding: full }
  chunk chunk1 = L0-8
  chunk chunk2 = L9-17 + norm + head(argmax)
}
"""
    good = """
topology as_trained {
  model "gemma3.json"
  target ane ios18 a17
  context 2048
  attention { sliding: sliding(window = 512) }
  chunk chunk1 = L0-8
  chunk chunk2 = L9-17 + norm + head(argmax)
}
"""

    def _check(self, subject: Subject) -> Iterator[Finding]:
        for span, window, layers in by_window(subject, gt):
            message = f"{layers} see more than the {window} positions of the checkpoint"
            words = f"the output can differ from position {window} on"
            help_ = "measure the difference, and allow it with what you found"
            yield self.flag(span, message, words, help=help_)
