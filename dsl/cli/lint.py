"""`topoc lint`: check topologies."""

from pathlib import Path

import click

from topoc.dsl.cli import options, view
from topoc.dsl.diagnostic import Diagnostic, Severity, TopocError
from topoc.dsl.load import Loader
from topoc.dsl.render import count
from topoc.dsl.resolve import Given

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
    """Check every topology of each FILE; `-` reads standard input."""
    loader = Loader(Given(dict(define), model, None))
    findings: list[Diagnostic] = []
    unread: list[Diagnostic] = []
    for file in files:
        try:
            found = [one for loaded in loader.all(file) for one in loaded.findings]
        except TopocError as failure:
            unread += failure.findings
        else:
            findings += [one for one in dict.fromkeys(found) if one not in findings]
    view.report((*unread, *findings), style)
    if style == "text":
        files_ = f"{len(files)} file{'s' * (len(files) > 1)}"
        view.result(f"{files_}: {count((*unread, *findings))}\n{_UNPROVEN}")
    raise SystemExit(_status(findings, unread, Severity(fail_on)))


def _status(findings: list[Diagnostic], unread: list[Diagnostic], fail_on: Severity) -> int:
    if unread:
        return view.COULD_NOT_RUN
    failing = any(finding.severity >= fail_on for finding in findings)
    return view.FINDINGS if failing else view.CLEAN
