"""What code hosts show beside a line: a path from the folder that is checked, and the words."""

from pathlib import Path

from topoc.dsl.diagnostic import Diagnostic, Place
from topoc.dsl.source import Span


def words(finding: Diagnostic) -> str:
    """The message, what its place adds, and the help, a line each."""
    lines = [finding.message]
    at = finding.at
    if isinstance(at.at, Place) and at.at.part:
        lines.append(f"at {at.at.part}")
    if finding.help:
        lines.append(f"help: {finding.help}")
    return "\n".join(lines)


def file_of(at: Span | Place) -> str:
    """The file that a place is in, relative to the working folder if it lies below it.

    Code hosts know files by their path in the repository and take no other.
    """
    name = at.file if isinstance(at, Place) else at.source.name
    path = Path(name)
    here = Path.cwd()
    if path.is_absolute() and path.is_relative_to(here):
        path = path.relative_to(here)
    return path.as_posix()


def end_of(span: Span) -> Span:
    """The empty span behind the last character of another."""
    return Span(span.source, span.end, span.end)
