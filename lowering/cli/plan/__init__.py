"""`topoc plan`: what a topology would become, without weights, or what a bundle became."""

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

MANIFEST, TOPOLOGY = "manifest.json", "topology.topo"  # of a bundle


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
    """Show what FILE becomes: chunks, functions, features, bytes, host tables and budgets.

    Of a bundle it also shows what compression cost each layer and weight, the worst first.
    """
    bundle = Path(file) if (Path(file) / MANIFEST).is_file() else None
    if bundle is not None and (name is not None or define or model is not None):
        message = "a bundle is shown as it is: leave out --topology, -D and --model"
        raise click.UsageError(message)
    text = file if bundle is None else str(bundle / TOPOLOGY)
    topology, findings = load(text, name=name, define=dict(define), model=model)
    findings = findings if bundle is None or topology is None else ()  # its manifest tells them
    view.problems(findings)
    sound = topology is not None and all(one.severity < Severity.ERROR for one in findings)
    if topology is not None and (html or svg):
        drawn = not _draw(topology, findings, costs, html, svg)
        raise SystemExit(view.CLEAN if drawn and sound else view.FINDINGS)
    if topology is None or not sound:
        raise SystemExit(view.FINDINGS)
    raise SystemExit(_tell(topology, _report(topology, costs, bundle), style))


def _tell(topology: "Topology", told: "Report", style: str) -> int:
    """Print a report and the budgets that it breaks; the exit status."""
    from topoc.lowering.cli.plan.text import as_text

    view.result(json.dumps(told, indent=1) if style == "json" else as_text(told))
    breaches = tuple(_breaches(topology, told))
    view.problems(breaches)
    return view.FINDINGS if breaches else view.CLEAN


def _draw(
    topology: "Topology",
    findings: tuple[Diagnostic, ...],
    costs: str | None,
    html: str | None,
    svg: str | None,
) -> tuple[Diagnostic, ...]:
    """Write the pictures; what no plan is made for has them too. Gives what a plan found."""
    from topoc.lowering.cli.page.render import Subject, plan_page, plan_svg

    options.no_format_beside(html or svg)
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


def _report(topology: "Topology", costs: str | None, bundle: Path | None = None) -> "Report":
    """What is told of a topology; raises TopocError for what has no lowering yet."""
    from topoc.lowering.architecture import read
    from topoc.lowering.cli.plan.gather import gather
    from topoc.lowering.plan import plan
    from topoc.lowering.refuse import refusals

    refused = tuple(refusals(topology))
    if refused:
        raise TopocError(*refused)
    times, architecture = _times(topology, costs), read(topology.layers.config)
    if bundle is None:
        return gather(plan(topology, architecture), times)
    from topoc.lowering.bundle.reader import open_bundle
    from topoc.lowering.ir import DType

    said = open_bundle(bundle, check=False).manifest
    laid = plan(topology, architecture, dtype=DType(said.precision))
    return gather(laid, times, said.quantization)


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
