"""Findings as data: what is wrong, where, why, and what to do instead."""

from enum import Enum
from functools import total_ordering

from attrs import field, frozen

from topoc.dsl.plain import Plain
from topoc.dsl.source import Span


@total_ordering
class Severity(Enum):
    """How bad a finding is; they compare, and an error is the greatest."""

    NOTE = "note"
    WARNING = "warning"
    ERROR = "error"

    def __lt__(self, other: "Severity") -> bool:
        order = list(Severity)
        return order.index(self) < order.index(other)


@frozen(eq=False, repr=False)
class Place(Plain):
    """A place outside any `.topo` text: a checkpoint tensor, a MIL op, a manifest field."""

    file: str
    part: str = ""

    def __str__(self) -> str:
        return f"{self.file}: {self.part}" if self.part else self.file


@frozen(eq=False, repr=False)
class Label(Plain):
    """A place, with a few words on what stands there."""

    at: Span | Place
    words: str = ""


@frozen(eq=False, repr=False)
class Edit(Plain):
    """A replacement of one span that mends a finding."""

    span: Span
    text: str


@frozen(eq=False, repr=False)
class Diagnostic(Plain):
    """One finding.

    The message makes sense alone: lower case, one clause, no full stop. The help is an action.
    """

    code: str
    severity: Severity
    message: str
    at: Label
    related: tuple[Label, ...] = ()
    help: str = ""
    fix: tuple[Edit, ...] = field(default=(), kw_only=True)


class TopocError(Exception):
    """Work that could not go on, with every finding that stopped it."""

    def __init__(self, *findings: Diagnostic) -> None:
        super().__init__("; ".join(f"{one.at.at}: {one.code}: {one.message}" for one in findings))
        self.findings = findings


def error(
    code: str,
    message: str,
    at: Span | Place,
    words: str = "",
    *,
    help: str = "",  # noqa: A002 — the field it fills
    related: tuple[Label, ...] = (),
) -> Diagnostic:
    """An error at one place."""
    return Diagnostic(code, Severity.ERROR, message, Label(at, words), related, help)


def warning(
    code: str,
    message: str,
    at: Span | Place,
    words: str = "",
    *,
    help: str = "",  # noqa: A002 — the field it fills
    related: tuple[Label, ...] = (),
) -> Diagnostic:
    """A warning at one place."""
    return Diagnostic(code, Severity.WARNING, message, Label(at, words), related, help)
