"""One finding for all ops of a function that have the same fault."""

from collections.abc import Sequence

from topoc.dsl.diagnostic import Label, Severity
from topoc.dsl.lint.mil import Function, Op
from topoc.dsl.lint.rule import Finding, Rule
from topoc.dsl.lint.subject import Mil

SHOWN = 2  # places beside the first; thousands of ops may share a fault


def at_ops(
    rule: Rule,
    subject: Mil,
    function: Function,
    ops: Sequence[Op],
    message: str,
    *,
    help: str,  # noqa: A002 — the field it fills
    severity: Severity | None = None,
) -> Finding:
    """The finding, at the first op; a few of the others are named and the rest counted."""
    first, *others = ops
    place = subject.package.place
    words = f"the first of {len(ops)}" if others else ""
    related = tuple(Label(place(function, one), "and here") for one in others[:SHOWN])
    return rule.flag(
        place(function, first),
        message,
        words,
        chunk=subject.chunk,
        severity=severity,
        related=related,
        help=help,
    )


def at_function(
    rule: Rule,
    subject: Mil,
    function: Function,
    message: str,
    *,
    help: str,  # noqa: A002 — the field it fills
    part: str = "",
    severity: Severity | None = None,
) -> Finding:
    """A finding about a function as a whole, or about an input or output of it."""
    place = subject.package.place(function, part=part)
    return rule.flag(place, message, chunk=subject.chunk, severity=severity, help=help)
