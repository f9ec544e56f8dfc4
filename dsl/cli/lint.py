"""`topoc lint`: check topologies, and bundles that were compiled from some."""

import os
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

import click
from attrs import evolve

from topoc.dsl.cli import options, view
from topoc.dsl.diagnostic import Diagnostic, Severity, TopocError
from topoc.dsl.load import Loader
from topoc.dsl.render import count
from topoc.dsl.resolve import Given

_MANIFEST = "manifest.json"  # what a folder has that is a bundle
_BUNDLES = "topoc.lowering.cli.lint"
_UNPROVEN = "not proved by lint: placement, speed and accuracy, which take a device"


@click.command("lint")
@click.argument("files", nargs=-1, required=True, metavar="FILE...")
@click.option(
    "--format",
    "style",
    type=click.Choice(["text", "json", "sarif", "github"]),
    default="text",
    show_default=True,
    help="How to write the findings.",
)
@click.option(
    "--fail-on",
    type=click.Choice(["note", "warning", "error"]),
    default="error",
    show_default=True,
    help="The mildest finding that makes the exit status 1.",
)
@options.define
@options.model
def command(
    files: tuple[str, ...],
    style: str,
    fail_on: str,
    define: tuple[tuple[str, float], ...],
    model: Path | None,
) -> None:
    """Check every topology of each FILE; `-` reads standard input, a folder may be a bundle."""
    loader = Loader(Given(dict(define), model, None))
    findings: list[Diagnostic] = []
    unread: list[Diagnostic] = []
    for file in files:
        try:
            found = list(_bundle(file) if _is_bundle(file) else _topologies(loader, file))
        except TopocError as failure:
            unread += failure.findings
        else:
            findings = list(dict.fromkeys([*findings, *found]))
    view.report((*unread, *findings), style)
    if style == "text":
        files_ = f"{len(files)} file{'s' * (len(files) > 1)}"
        view.result(f"{files_}: {count((*unread, *findings))}\n{_UNPROVEN}")
    raise SystemExit(_status(findings, unread, Severity(fail_on)))


def _topologies(loader: Loader, file: str) -> Iterator[Diagnostic]:
    for loaded in loader.all(file):
        yield from loaded.findings


def _is_bundle(file: str) -> bool:
    return os.path.isfile(os.path.join(file, _MANIFEST))  # noqa: PTH113, PTH118 — any text will do


def _bundle(folder: str) -> Iterator[Diagnostic]:
    """What is wrong with a bundle, and as notes what its own topology is warned of.

    The bundle stands, whatever was found in the text that it was compiled from.
    """
    findings, text = import_module(_BUNDLES).of_bundle(folder)
    yield from findings
    if text is not None:
        for one in _topologies(Loader(Given({}, None, None)), text):
            if one.severity > Severity.NOTE:
                yield evolve(one, severity=Severity.NOTE)


def _status(findings: list[Diagnostic], unread: list[Diagnostic], fail_on: Severity) -> int:
    if unread:
        return view.COULD_NOT_RUN
    failing = any(finding.severity >= fail_on for finding in findings)
    return view.FINDINGS if failing else view.CLEAN
