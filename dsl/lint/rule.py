"""What a lint rule is: a class in a file of its own, whose address is its code."""

from collections.abc import Iterator
from enum import Enum
from typing import ClassVar

from attrs import frozen

from topoc.dsl.diagnostic import Diagnostic, Label, Severity
from topoc.dsl.lint.subject import Subject
from topoc.dsl.plain import Plain
from topoc.dsl.source import Span

_PACKAGE = "topoc.dsl.lint.rules."


class Trust(Enum):
    """How far to believe a piece of evidence."""

    MEASURED = "measured"
    REPORTED = "reported"
    CONTESTED = "contested"


@frozen(eq=False, repr=False)
class Evidence(Plain):
    """One observation behind a rule, and where and when it was made."""

    what: str
    source: str
    date: str
    trust: Trust


@frozen(eq=False, repr=False)
class Finding(Plain):
    """A diagnostic, and the chunk that it is about."""

    diagnostic: Diagnostic
    chunk: str | None = None


class Rule:
    """One thing that can be wrong. The docstring of a rule says why it matters.

    A rule of coherence says what no bundle can do; its findings can't be allowed and it needs no
    evidence. A rule of placement is about one accelerator and cites what was seen there.
    """

    code: ClassVar[str]
    severity: ClassVar[Severity] = Severity.ERROR
    coherence: ClassVar[bool] = False
    placement: ClassVar[bool] = False
    evidence: ClassVar[tuple[Evidence, ...]] = ()
    bad: ClassVar[str]
    good: ClassVar[str]

    def __init_subclass__(cls) -> None:
        """A rule's code is the path of its file."""
        if cls.__module__.startswith(_PACKAGE):
            cls.code = cls.__module__.removeprefix(_PACKAGE).replace("_", "-")

    def check(self, subject: Subject) -> Iterator[Finding]:
        """The findings in one topology."""
        return self._check(subject)

    def _check(self, subject: Subject) -> Iterator[Finding]:
        raise NotImplementedError

    def flag(
        self,
        at: Span,
        message: str,
        words: str = "",
        *,
        chunk: str | None = None,
        severity: Severity | None = None,
        related: tuple[Label, ...] = (),
        help: str = "",  # noqa: A002 — the field it fills
    ) -> Finding:
        """A finding of this rule."""
        label = Label(at, words)
        rank = severity or self.severity
        return Finding(Diagnostic(self.code, rank, message, label, related, help), chunk)
