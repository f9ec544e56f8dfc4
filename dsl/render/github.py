"""Findings as GitHub workflow commands, which a run shows at the lines that they name."""

from collections.abc import Iterable

from topoc.dsl.diagnostic import Diagnostic, Place
from topoc.dsl.render.annotation import end_of, file_of, words

_COMMANDS = {"error": "error", "warning": "warning", "note": "notice"}


def as_github(findings: Iterable[Diagnostic]) -> str:
    """One command a finding, each on a line."""
    return "\n".join(map(_command, findings))


def _command(finding: Diagnostic) -> str:
    fields = {**_place(finding), "title": finding.code}
    listed = ",".join(f"{name}={_field(str(value))}" for name, value in fields.items())
    return f"::{_COMMANDS[finding.severity.value]} {listed}::{_data(words(finding))}"


def _place(finding: Diagnostic) -> dict[str, str | int]:
    at = finding.at.at
    place: dict[str, str | int] = {"file": file_of(at)}
    if isinstance(at, Place):
        return place
    end = end_of(at)
    place |= {"line": at.line, "col": at.column, "endLine": end.line}
    if end.line == at.line:  # GitHub reads an end column within one line only
        place["endColumn"] = end.column
    return place


def _data(text: str) -> str:
    """A message: what would end the command is escaped, `%` first."""
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _field(text: str) -> str:
    """A property, which colons and commas would end too."""
    return _data(text).replace(":", "%3A").replace(",", "%2C")
