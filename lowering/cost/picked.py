"""Rows that a list picks out of what was measured, written as `split --calibrate` prints them."""

from pathlib import Path

from attrs import evolve

from topoc.dsl.diagnostic import TopocError, error
from topoc.dsl.library import read
from topoc.dsl.source import Span
from topoc.lowering.cost.rows import Row, Rows, name_of


def picked(found: Rows, path: Path) -> Rows:
    """The rows that a file lists, a line each; whole calls stay.

    A line begins with a row as it is printed, up to what was measured; what comes after is not
    read, and neither is anything after `#`. Raises TopocError for a line that is no row, or one
    row more often than it was measured.
    """
    source = read(path)
    left, kept = list(found.rows), []
    for number, start in enumerate(source.line_starts, 1):
        line = source.line_text(number).partition("#")[0]
        if not line.strip():
            continue
        row = next((one for one in left if _names(line.split(), one)), None)
        if row is None:
            span = Span(source, start, start + len(line.rstrip()))
            raise _unknown(span, line.split(), found.rows)
        left.remove(row)
        kept.append(row)
    return evolve(found, rows=tuple(kept))


def _names(words: list[str], row: Row) -> bool:
    name = [*name_of(row).split(), f"{row.ms:.1f}"]
    return words[: len(name)] == name


def _unknown(span: Span, words: list[str], rows: tuple[Row, ...]) -> TopocError:
    alike = [one for one in rows if one.topology == words[0]]
    message = "no row that was measured reads like this"
    if any(_names(words, one) for one in rows):
        message = "the row is listed more often than it was measured"
    elif not alike:
        message = f"no row was measured of `{words[0]}`"
    example = next(iter(alike or rows), None)
    help_ = "write rows as `topoc split --calibrate` prints them"
    if example is not None:
        help_ += f", such as `{name_of(example)} {example.ms:.1f}`"
    return TopocError(error("cost.unknown-row", message, span, help=help_))
