"""A topology that was given up."""

from collections.abc import Iterator

from topoc.dsl.diagnostic import Severity
from topoc.dsl.lint.rule import Finding, Rule
from topoc.dsl.lint.subject import Subject
from topoc.dsl.resolve.verdict import FINAL


class RevivedVerdict(Rule):
    """A verdict stays in sight.

    A topology that was shelved, rejected or abandoned keeps its reason and its figure, so that
    nobody builds it again without new evidence.
    """

    severity = Severity.NOTE
    bad = """
topology given_up {
  model "gemma3.json"
  target ane ios18 a17
  context 2048
  chunk chunk1 = L0-8
  chunk chunk2 = L9-17 + norm + head(argmax)
  status rejected on 2026-04-17 {
    because "it was slower"
    figure  "31 against 34 tok/s"
    under   "coremltools 9.0"
    revisit "a faster compiler"
  }
}
"""
    good = """
topology alive {
  model "gemma3.json"
  target ane ios18 a17
  context 2048
  chunk chunk1 = L0-8
  chunk chunk2 = L9-17 + norm + head(argmax)
  status shipping on 2026-04-17
}
"""

    def _check(self, subject: Subject) -> Iterator[Finding]:
        verdict = subject.topology.verdict
        if verdict.state in FINAL and not verdict.line("reopened"):
            message = f"`{subject.topology.name}` is {verdict.state}"
            help_ = f"what would change that: {verdict.line('revisit')}"
            span = verdict.span or subject.whole
            yield self.flag(span, message, verdict.line("because"), help=help_)
