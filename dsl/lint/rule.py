"""What a lint rule is: a class in a file of its own, whose address is its code."""

from collections.abc import Iterator
from enum import Enum
from typing import TYPE_CHECKING, ClassVar

from attrs import frozen

from topoc.dsl.diagnostic import Diagnostic, Label, Place, Severity
from topoc.dsl.plain import Plain
from topoc.dsl.source import Span

if TYPE_CHECKING:
    from topoc.dsl.lint.checkpoint import Checkpoint
    from topoc.dsl.lint.subject import Mil, Subject

_PACKAGE = "topoc.dsl.lint.rules."


class Trust(Enum):
    """How far to believe a piece of evidence."""

    MEASURED = "measured"
    REPORTED = "reported"
    CONTESTED = "contested"


@frozen(eq=False, repr=False)
class Evidence(Plain):
    """One observation behind a rule, and where, when and on what it was made."""

    what: str
    source: str
    date: str  # YYYY-MM, with -DD where it is known
    trust: Trust
    toolchain: str = ""  # "coremltools 9.0", "iOS 26"
    device: str = ""
    figure: str = ""


@frozen(eq=False, repr=False)
class Finding(Plain):
    """A diagnostic, and the chunk that it is about."""

    diagnostic: Diagnostic
    chunk: str | None = None


class Rule:
    """One thing that can be wrong. The docstring of a rule says why it matters.

    A rule of coherence says what no bundle can do; its findings can't be allowed, and its evidence
    tells who met them. A rule of placement is about the Neural Engine: it cites what was seen
    there, and is silent for other units. A rule overrides `_check`, `_check_mil` or
    `_check_checkpoint` for each subject that it looks at, and is listed under the same subjects in
    `dsl/lint/rules/__init__.py`. Its examples are its tests and stand in its docs page: topologies
    (`bad`, `good`), and programs or checkpoints in a text form (`bad_mil`, `good_mil`,
    `bad_checkpoint`, `good_checkpoint`).
    """

    code: ClassVar[str]
    severity: ClassVar[Severity] = Severity.ERROR  # of its gravest findings
    coherence: ClassVar[bool] = False
    placement: ClassVar[bool] = False
    evidence: ClassVar[tuple[Evidence, ...]] = ()
    remedy: ClassVar[str] = ""  # what to do, in a sentence; a finding's help is more precise
    error_texts: ClassVar[tuple[str, ...]] = ()  # what compilers and runtimes say of it, verbatim
    bad: ClassVar[str] = ""
    good: ClassVar[str] = ""
    bad_mil: ClassVar[str] = ""
    good_mil: ClassVar[str] = ""
    bad_checkpoint: ClassVar[str] = ""
    good_checkpoint: ClassVar[str] = ""

    def __init_subclass__(cls) -> None:
        """A rule's code is the path of its file."""
        if cls.__module__.startswith(_PACKAGE):
            cls.code = cls.__module__.removeprefix(_PACKAGE).replace("_", "-")

    def on_topology(self, subject: "Subject") -> Iterator[Finding]:
        """The findings in one topology."""
        return self._check(subject)

    def on_mil(self, subject: "Mil") -> Iterator[Finding]:
        """The findings in one package."""
        return self._check_mil(subject)

    def on_checkpoint(self, subject: "Checkpoint") -> Iterator[Finding]:
        """The findings in one checkpoint."""
        return self._check_checkpoint(subject)

    def _check(self, subject: "Subject") -> Iterator[Finding]:
        raise NotImplementedError

    def _check_mil(self, subject: "Mil") -> Iterator[Finding]:
        raise NotImplementedError

    def _check_checkpoint(self, subject: "Checkpoint") -> Iterator[Finding]:
        raise NotImplementedError

    def flag(
        self,
        at: Span | Place,
        message: str,
        words: str = "",
        *,
        chunk: str | None = None,
        severity: Severity | None = None,
        related: tuple[Label, ...] = (),
        help: str = "",  # noqa: A002 — the field it fills
    ) -> Finding:
        """A finding of this rule, at most as grave as the rule says of itself."""
        rank = severity or self.severity
        if rank > self.severity:
            fault = f"{self.code} is never as grave as {rank.value}: {message}"
            raise AssertionError(fault)
        return Finding(Diagnostic(self.code, rank, message, Label(at, words), related, help), chunk)
