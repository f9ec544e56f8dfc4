"""The only place that prints: results on stdout, the rest on stderr."""

import os
import sys
from collections.abc import Sequence
from io import TextIOWrapper
from typing import TYPE_CHECKING

import click

from topoc.dsl.diagnostic import Diagnostic

if TYPE_CHECKING:
    from topoc.dsl.render import Paint

CLEAN, FINDINGS, COULD_NOT_RUN = 0, 1, 2

_COLOURS = {"error": "red", "warning": "yellow", "note": "cyan", "help": "green", "frame": "blue"}


def tolerate() -> None:
    """Let a terminal of few characters show the others as escapes, rather than fail."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def result(text: str) -> None:
    """What was asked for."""
    click.echo(text)


def progress(text: str) -> None:
    """What is going on."""
    click.echo(text, err=True)


def report(findings: Sequence[Diagnostic], style: str) -> None:
    """Findings as the result of a command: `text`, `json`, `sarif` or `github`."""
    from topoc.dsl.render import as_github, as_json, as_text

    if style == "json":
        click.echo(as_json(findings))
    elif style == "sarif":
        click.echo(_sarif(findings))
    elif findings:
        text = as_text(findings, _paint(err=False)) if style == "text" else as_github(findings)
        click.echo(text)


def _sarif(findings: Sequence[Diagnostic]) -> str:
    from importlib.metadata import version

    from topoc.dsl.lint.lessons import summary
    from topoc.dsl.render import as_sarif

    return as_sarif(findings, version("topoc"), summary)


def problems(findings: Sequence[Diagnostic]) -> None:
    """Findings that come beside a result, or in its place."""
    if findings:
        from topoc.dsl.render import as_text

        click.echo(as_text(findings, _paint(err=True)), err=True)


def _paint(*, err: bool) -> "Paint":
    """Colours on a terminal, unless NO_COLOR is set."""
    from topoc.dsl.render import plain

    stream = sys.stderr if err else sys.stdout
    return _coloured if stream.isatty() and not os.environ.get("NO_COLOR") else plain


def _coloured(text: str, role: str) -> str:
    return click.style(text, fg=_COLOURS[role], bold=role in {"error", "warning"})
