"""`status` and `measured`: what became of a topology, and what devices said of it."""

from collections.abc import Callable, Collection

from topoc.dsl import ast
from topoc.dsl.diagnostic import Diagnostic, error
from topoc.dsl.model import Measurement, Verdict
from topoc.dsl.source import Span
from topoc.dsl.suggest import advice, quoted

STATES = ("planned", "prototype", "shipping", "shelved", "rejected", "abandoned")
FINAL = ("shelved", "rejected", "abandoned")
LINES = ("because", "figure", "under", "revisit", "source", "reopened", "harness")
NOTES = ("device", "under")

Report = Callable[[Diagnostic], None]


def verdict(status: ast.Status | None, report: Report) -> Verdict:
    """The verdict that a `status` line gives."""
    if status is None:
        return Verdict()
    if status.state.text not in STATES:
        message = f"there is no status `{status.state}`"
        help_ = advice(status.state.text, STATES, "there are")
        report(error("status.unknown", message, status.state.span, help=help_))
    lines: dict[str, str] = {}
    entries = status.record.entries if status.record else ()
    for entry in entries:
        _line(entry, lines, report)
    if status.state.text in FINAL:
        _check_complete(status, lines, report)
    return Verdict(
        state=status.state.text,
        date=status.date,
        lines=tuple((key, lines[key]) for key in LINES if key in lines),
        span=status.span,
        marks=tuple((entry.key[0], entry.span) for entry in entries),
    )


def _line(entry: ast.Entry, lines: dict[str, str], report: Report) -> None:
    key, *rest = entry.key
    none = key == "figure" and rest == ["none"]
    if key not in LINES or (rest and not none):
        name = " ".join(entry.key)
        message = f"a status has no line `{name}`"
        report(error("status.unknown", message, entry.span, help=advice(key, LINES, "it has")))
    elif key in lines:
        help_ = "say it in one line"
        report(error("name.duplicate", f"`{key}` stands twice", entry.span, help=help_))
    else:
        lines[key] = f"none: {_said(entry)}" if none else _said(entry)


def _said(entry: ast.Entry) -> str:
    value = entry.value
    return value.text if isinstance(value, ast.Text) else value.span.text


def _check_complete(status: ast.Status, lines: dict[str, str], report: Report) -> None:
    """A verdict against an idea says why, how much, with what, and what would change it."""
    missing = [key for key in ("because", "figure", "under", "revisit") if not lines.get(key)]
    if missing:
        listed = ", ".join(f"`{key}`" for key in missing)
        message = f"a topology that is {status.state} needs {listed}"
        help_ = f"write `status {status.state} on DATE {{ … }}` with a line for each"
        report(error("ledger.incomplete-verdict", message, status.span, help=help_))
    figure = lines.get("figure", "")
    numbered = figure.startswith("none: ") or any(char.isdigit() for char in figure)
    if figure and not numbered:
        help_ = 'give the number that was measured, or write `figure none "why"`'
        report(error("ledger.no-number", "the figure holds no number", status.span, help=help_))


def measurement(
    measured: ast.Measured,
    chunks: Collection[str],
    functions: Collection[str],
    report: Report,
) -> Measurement:
    """The figures of one `measured` block."""
    notes: list[tuple[str, str]] = []
    figures: list[tuple[tuple[str, ...], float, str]] = []
    for entry in measured.record.entries:
        if isinstance(entry.value, ast.Text):
            _check_word(entry.key[0], NOTES, entry.span, report)
            notes.append((entry.key[0], entry.value.text))
            continue
        words = entry.key[1:] if entry.key[0] == "placement" else entry.key
        _check_word(words[0] if words else "", (*chunks, *functions), entry.span, report)
        _check_unit(entry, entry.value, report)
        figures.append((entry.key, entry.value.value, entry.value.unit))
    return Measurement(
        date=measured.date, notes=tuple(notes), figures=tuple(figures), span=measured.span
    )


def _check_word(word: str, known: Collection[str], span: Span, report: Report) -> None:
    if word not in known:
        message = f"`{word}` is no chunk, function or note of a measurement"
        help_ = advice(word, known, "known here are") or "state the chunks first, or a note as text"
        report(error("name.unknown", message, span, help=help_))


def _check_unit(entry: ast.Entry, value: ast.Number, report: Report) -> None:
    fitting = ("%",) if entry.key[0] == "placement" else ("ms", "s", "tok/s")
    if value.unit not in fitting:
        message = f"`{value.span.text}` is no figure of this line"
        help_ = f"write it in {quoted(fitting)}"
        report(error("value.type", message, value.span, help=help_))
