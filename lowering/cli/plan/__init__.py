"""`topoc plan`: what a topology would become, without weights."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import click

from topoc.dsl.cli import options, view
from topoc.dsl.diagnostic import Diagnostic, Severity, TopocError, error
from topoc.dsl.load import load
from topoc.dsl.targets import costs_of

if TYPE_CHECKING:
    from topoc.dsl.model import Topology
    from topoc.lowering.cli.plan.report import Report
    from topoc.lowering.cli.plan.times import Times


@click.command("plan")
@click.argument("file", metavar="FILE")
@click.option(
    "--format",
    "style",
    type=click.Choice(["text", "json"]),
    default="text",
    show_default=True,
    help="How to write the plan.",
)
@click.option("--html", metavar="FILE", help="Write a page with pictures; `-` prints it.")
@click.option("--svg", metavar="FILE", help="Write the picture of the page alone.")
@click.option("--costs", help="A measured chip, or a file of costs. By default, the target's chip.")
@options.topology
@options.define
@options.model
def command(
    file: str,
    *,
    style: str,
    html: str | None,
    svg: str | None,
    costs: str | None,
    name: str | None,
    define: tuple[tuple[str, float], ...],
    model: Path | None,
) -> None:
    """Show what FILE becomes: chunks, functions, features, bytes, host tables and budgets."""
    from topoc.lowering.cli.plan.text import as_text

    topology, findings = load(file, name=name, define=dict(define), model=model)
    view.problems(findings)
    sound = not any(one.severity is Severity.ERROR for one in findings)
    if topology is not None and (html or svg):
        found = _draw(topology, findings, costs, html, svg)
        raise SystemExit(view.CLEAN if sound and not found else view.FINDINGS)
    if topology is None or not sound:
        raise SystemExit(view.FINDINGS)
    told = _report(topology, costs)
    view.result(json.dumps(told, indent=1) if style == "json" else as_text(told))
    breaches = tuple(_breaches(topology, told))
    view.problems(breaches)
    raise SystemExit(view.FINDINGS if breaches else view.CLEAN)


def _draw(
    topology: "Topology",
    findings: tuple[Diagnostic, ...],
    costs: str | None,
    html: str | None,
    svg: str | None,
) -> tuple[Diagnostic, ...]:
    """Write the pictures; what no plan is made for has them too. Gives what a plan found."""
    from topoc.lowering.cli.page.render import Subject, plan_page, plan_svg

    told: Report | None = None
    more: tuple[Diagnostic, ...] = ()
    if not any(one.severity is Severity.ERROR for one in findings):
        told, more = _told(topology, costs)
    view.problems(more)
    subject = Subject(topology=topology, findings=(*findings, *more), times=_times(topology, costs))
    for path, make in ((html, plan_page), (svg, plan_svg)):
        if path is not None:
            view.written(path, make(subject, told))
    return more


def _told(
    topology: "Topology", costs: str | None
) -> "tuple[Report | None, tuple[Diagnostic, ...]]":
    """A report and the budgets that it breaks, or what stands in its way."""
    try:
        told = _report(topology, costs)
    except TopocError as refusal:
        return None, refusal.findings
    return told, tuple(_breaches(topology, told))


def _report(topology: "Topology", costs: str | None) -> "Report":
    """What is told of a topology; raises TopocError for what has no lowering yet."""
    from topoc.lowering.architecture import read
    from topoc.lowering.cli.plan.gather import gather
    from topoc.lowering.plan import plan
    from topoc.lowering.refuse import refusals

    refused = tuple(refusals(topology))
    if refused:
        raise TopocError(*refused)
    times = _times(topology, costs)
    return gather(plan(topology, read(topology.layers.config)), times)


def _times(topology: "Topology", costs: str | None) -> "Times | None":
    """What tells milliseconds, if the target's chip was measured or costs are named."""
    if costs is None and costs_of(topology.target.chip) is None:
        return None
    from topoc.lowering.cli.plan.times import Times
    from topoc.lowering.cost.profile import choose

    found = choose(costs, topology.target.chip)
    return None if found is None else Times(topology, found)


def _breaches(topology: "Topology", told: "Report") -> Iterator[Diagnostic]:
    """Budgets that only a plan can measure; lint has seen to the others."""
    from topoc.lowering.cli.plan.breach import amount

    for budget, row in zip(topology.budgets, told["budgets"], strict=True):
        is_ = amount(budget, row, told)
        if is_ is not None:
            message = f"{budget.measure} is {is_[0]}, and the budget is {budget.relation} {is_[1]}"
            help_ = "change the chunks, or state the budget anew"
            yield error("expect.breach", message, budget.span, help=help_)
