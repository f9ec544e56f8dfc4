"""Findings as text, with carets under what they are about."""

import unicodedata
from collections.abc import Callable, Iterable, Iterator, Sequence

from attrs import frozen

from topoc.dsl.diagnostic import Diagnostic, Place, Severity
from topoc.dsl.plain import Plain
from topoc.dsl.source import Source, Span

_WIDE = 200  # characters of a line that are shown
_LEAD = 60  # of them before what is marked, where a line is longer

Paint = Callable[[str, str], str]  # a text and its role: error, warning, note, help, frame


def plain(text: str, _role: str) -> str:
    """No colours."""
    return text


def as_text(findings: Iterable[Diagnostic], paint: Paint = plain) -> str:
    """Every finding with the lines that it is about."""
    return "\n".join(_finding(finding, paint) for finding in findings)


def _finding(finding: Diagnostic, paint: Paint) -> str:
    role = finding.severity.value
    lines = [f"{paint(f'{role}[{finding.code}]', role)}: {_safe(finding.message)}"]
    lines += _places(finding, paint)
    if finding.help:
        lines.append(f"{paint('   = ', 'frame')}{paint('help', 'help')}: {_safe(finding.help)}")
    return "\n".join(lines) + "\n"


@frozen(eq=False, repr=False)
class _Mark(Plain):
    """A span to point at, and what to write there."""

    span: Span
    words: str
    role: str
    sign: str  # what it is underlined with


def _places(finding: Diagnostic, paint: Paint) -> Iterator[str]:
    """The place of a finding, and then the places in other texts that it relates to."""
    sources: dict[Source, list[_Mark]] = {}
    for label in (finding.at, *finding.related):
        first = label is finding.at
        if isinstance(label.at, Place):
            words = f" {_safe(label.words)}" if label.words else ""
            arrow = paint(f"  {'-->' if first else ':::'} ", "frame")
            yield f"{arrow}{_safe(str(label.at))}{words}"
        else:
            role, sign = (finding.severity.value, "^") if first else ("note", "-")
            mark = _Mark(label.at, label.words, role, sign)
            sources.setdefault(label.at.source, []).append(mark)
    for source, marks in sources.items():
        arrow = "-->" if marks[0].sign == "^" else ":::"
        yield f"{paint(f'  {arrow} ', 'frame')}{_safe(str(marks[0].span))}"
        yield from _excerpt(source, marks, paint)


def _excerpt(source: Source, marks: Sequence[_Mark], paint: Paint) -> Iterator[str]:
    """The marked lines, the one before the first, and what lies between near ones."""
    shown = _shown(source, sorted({mark.span.line for mark in marks}))
    width = max(2, len(str(shown[-1])))
    bar = paint(f"{' ' * width} |", "frame")
    yield bar
    for previous, line in zip([shown[0], *shown], shown, strict=False):
        if line - previous > 1:
            yield paint("...", "frame")
        here = [mark for mark in marks if mark.span.line == line]
        start, text = _cut(source.line_text(line), here)
        yield f"{paint(f'{line:>{width}} |', 'frame')} {_safe(text)}".rstrip()
        for mark in here:
            yield f"{bar} {_pointer(text, start, mark, paint)}"


def _cut(line: str, marks: Sequence[_Mark]) -> tuple[int, str]:
    """The part of a line that is shown, all of most, and the column where it starts."""
    if len(line) <= _WIDE:
        return 0, line
    first = min((mark.span.column - 1 for mark in marks), default=0)
    start = max(0, first - _LEAD)
    part = line[start : start + _WIDE]
    part = f"…{part[1:]}" if start else part
    return start, f"{part[:-1]}…" if start + _WIDE < len(line) else part


def _shown(source: Source, marked: Sequence[int]) -> list[int]:
    """The numbers of the lines to show."""
    before = marked[0] - 1
    shown = [before] if before and source.line_text(before).strip() else []
    for line in marked:
        if shown and line - shown[-1] == 2:
            shown.append(line - 1)
        shown.append(line)
    return shown


def _pointer(line: str, first: int, mark: _Mark, paint: Paint) -> str:
    """Carets under a span, clipped to what is shown of its line, and the words of its label."""
    start = mark.span.column - 1 - first
    under = line[start : start + mark.span.end - mark.span.start]
    carets = mark.sign * max(1, _columns(under))
    words = paint(f"{carets} {_safe(mark.words)}".rstrip(), mark.role)
    return " " * _columns(line[:start]) + words


def _safe(text: str) -> str:
    """Text without what moves a terminal's cursor; a tab is four spaces."""
    shown = (char if char.isprintable() else "\ufffd" for char in text.replace("\t", "    "))
    return "".join(shown)


def _columns(text: str) -> int:
    """How many columns a terminal gives a text."""
    safe = _safe(text)
    wide = sum(unicodedata.east_asian_width(char) in "WF" for char in safe)
    return len(safe) + wide - sum(unicodedata.combining(char) != 0 for char in safe)


def count(findings: Sequence[Diagnostic]) -> str:
    """`2 errors, 1 warning`, the worst first; `no findings` for none."""
    words = []
    for severity in sorted(Severity, reverse=True):
        number = sum(finding.severity is severity for finding in findings)
        if number:
            words.append(f"{number} {severity.value}{'s' * (number > 1)}")
    return ", ".join(words) or "no findings"
