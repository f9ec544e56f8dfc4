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
    from topoc.lowering.plan import Plan

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
    from topoc.lowering.cli.diff.gather import gather, planned
    from topoc.lowering.cli.diff.text import as_text

    options.no_format_beside(html)
    both = [_loaded(path, define, model) for path in (before, after)]
    plans = [planned(topology) for topology, _ in both]
    told = gather(both[0][0], both[1][0], costs, plans)
    if html is not None:
        view.written(html, _page(both, plans, told, costs))
    else:
        view.result(json.dumps(told, indent=1) if style == "json" else as_text(told))
    raise SystemExit(view.FINDINGS if exit_code and not told["same"] else view.CLEAN)


def _loaded(path: str, define: tuple[tuple[str, float], ...], model: Path | None) -> "Loaded":
    topology, findings = load(path, define=dict(define), model=model)
    if topology is None:
        view.problems(findings)
        raise SystemExit(view.COULD_NOT_RUN)
    return topology, findings


def _page(
    both: "list[Loaded]", plans: "list[Plan | str]", told: "Report", costs: str | None
) -> str:
    """Both topologies as pictures."""
    from topoc.lowering.cli.diff.gather import profile
    from topoc.lowering.cli.page.render import Subject, diff_page
    from topoc.lowering.cli.plan.gather import gather
    from topoc.lowering.cli.plan.times import Times

    subjects = []
    for (topology, findings), made in zip(both, plans, strict=True):
        found = profile(topology, costs)
        times = None if found is None else Times(topology, found)
        plan = None if isinstance(made, str) else gather(made, times)
        subject = Subject(topology=topology, findings=findings, times=times)
        subjects.append((subject, plan))
    return diff_page(subjects, told)
