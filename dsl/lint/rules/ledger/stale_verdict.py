"""A topology that was given up under older tools."""

import re
from collections.abc import Iterator

from topoc.dsl.diagnostic import Severity
from topoc.dsl.lint.rule import Finding, Rule
from topoc.dsl.lint.subject import Subject
from topoc.dsl.resolve.verdict import FINAL
from topoc.dsl.targets.toolchain import COREMLTOOLS

Version = tuple[int, ...]

# One version or a list of them; what else follows (`9.0b1`, `8.0+`) can't be compared.
_VERSION = r"[0-9]{1,4}(?:\.[0-9]{1,4})*(?![\w+]|\.[0-9])"
_NAMED = rf"\bcoremltools[\s=]*({_VERSION}(?:\s*(?:[-–/,]|and|or|to)\s*{_VERSION})*)"


class StaleVerdict(Rule):
    """A verdict is as old as the tools that it was reached with.

    What one compiler refused, or ran slowly, a later one may take. The version of coremltools is
    what can be compared: the system of the phone that was measured is not known here.
    """

    severity = Severity.NOTE
    remedy = "Measure again with the tools in use, and date the verdict anew."
    bad = """
topology given_up_long_ago {
  model "gemma3.json"
  target ane ios18 a17
  context 2048
  chunk chunk1 = L0-8
  chunk chunk2 = L9-17 + norm + head(argmax)
  status rejected on 2025-04-17 {
    because "it was slower"
    figure  "31 against 34 tok/s"
    under   "iOS 18, coremltools 8.3"
    revisit "a faster compiler"
  }
}
"""
    good = """
topology given_up {
  model "gemma3.json"
  target ane ios18 a17
  context 2048
  chunk chunk1 = L0-8
  chunk chunk2 = L9-17 + norm + head(argmax)
  status rejected on 2026-04-17 {
    because "it was slower"
    figure  "31 against 34 tok/s"
    under   "iOS 26, coremltools 9.0"
    revisit "a faster compiler"
  }
}
"""

    def _check(self, subject: Subject) -> Iterator[Finding]:
        verdict = subject.topology.verdict
        if verdict.state not in FINAL or verdict.line("reopened"):
            return
        newest = max(_versions(verdict.line("under")), default=None)
        in_use = _version(COREMLTOOLS)
        if newest is not None and newest < in_use[: len(newest)]:
            was = f"`{subject.topology.name}` was {verdict.state} under coremltools"
            message = f"{was} {'.'.join(map(str, newest))}, and {COREMLTOOLS} is in use"
            span = verdict.at("under") or verdict.span or subject.whole
            help_ = "measure it again, and write the new figure and what it was measured under"
            yield self.flag(span, message, help=help_)


def _versions(under: str) -> list[Version]:
    """The versions of coremltools that a text names."""
    named = re.findall(_NAMED, under, re.IGNORECASE)
    return [_version(one) for versions in named for one in re.findall(_VERSION, versions)]


def _version(text: str) -> Version:
    return tuple(map(int, text.split(".")))
