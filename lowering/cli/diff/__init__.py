"""`topoc diff`: what differs between two topologies."""

import json
from pathlib import Path
from typing import TYPE_CHECKING

import click

from topoc.dsl.cli import options, view
from topoc.dsl.load import load

if TYPE_CHECKING:
    from topoc.dsl.diagnostic import Diagnostic
    from topoc.dsl.model import Topology
    from topoc.lowering.cli.diff.report import Report

    Loaded = tuple[Topology, tuple[Diagnostic, ...]]


@click.command("diff")
@click.argument("before", metavar="A")
@click.argument("after", metavar="B")
@click.option("--format", "style", type=click.Choice(["text", "json"]), default="text")
@click.option("--html", metavar="FILE", help="Write a page, both side by side; `-` prints it.")
@click.option("--exit-code", is_flag=True, help="Exit with 1 where anything differs.")
@click.option(
    "--costs", help="A measured chip, or a file of costs. By default, each target's chip."
)
@options.define
@options.model
def command(
    before: str,
    after: str,
    *,
    style: str,
    html: str | None,
    costs: str | None,
    define: tuple[tuple[str, float], ...],
    model: Path | None,
    exit_code: bool,
) -> None:
    """Tell what differs between the topologies A and B: what moved, bytes, ms and features.

    Both may have findings of lint; where programs can't be built, the rest is compared.
    """
    from topoc.lowering.cli.diff.gather import gather
    from topoc.lowering.cli.diff.text import as_text

    one, other = (_loaded(path, define, model) for path in (before, after))
    told = gather(one[0], other[0], costs)
    if html is not None:
        view.written(html, _page(one, other, told, costs))
    else:
        view.result(json.dumps(told, indent=1) if style == "json" else as_text(told))
    raise SystemExit(view.FINDINGS if exit_code and not told["same"] else view.CLEAN)


def _loaded(path: str, define: tuple[tuple[str, float], ...], model: Path | None) -> "Loaded":
    topology, findings = load(path, define=dict(define), model=model)
    if topology is None:
        view.problems(findings)
        raise SystemExit(view.COULD_NOT_RUN)
    return topology, findings


def _page(one: "Loaded", other: "Loaded", told: "Report", costs: str | None) -> str:
    """Both topologies as pictures."""
    from topoc.lowering.cli.diff.gather import profile
    from topoc.lowering.cli.page.render import Subject, diff_page
    from topoc.lowering.cli.plan.times import Times

    def subject(of: "Loaded") -> Subject:
        topology, findings = of
        found = profile(topology, costs)
        times = None if found is None else Times(topology, found)
        return Subject(topology=topology, findings=findings, times=times)

    return diff_page(subject(one), subject(other), told)
