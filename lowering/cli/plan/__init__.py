"""`topoc plan`: what a topology would become, without weights, or what a bundle became."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import click

from topoc.dsl.cli import options, view
from topoc.dsl.diagnostic import Diagnostic, Severity, TopocError, error
from topoc.dsl.load import load

if TYPE_CHECKING:
    from topoc.dsl.model import Topology
    from topoc.lowering.cli.plan.report import Report

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
@options.topology
@options.define
@options.model
def command(
    file: str,
    style: str,
    name: str | None,
    define: tuple[tuple[str, float], ...],
    model: Path | None,
) -> None:
    """Show what FILE becomes: chunks, functions, features, bytes, host tables and budgets.

    Of a bundle it also shows what compression cost each layer and weight, the worst first.
    """
    from topoc.lowering.cli.plan.text import as_text

    bundle = Path(file) if (Path(file) / MANIFEST).is_file() else None
    if bundle is not None:
        if name is not None or define or model is not None:
            message = "a bundle is shown as it is: leave out --topology, -D and --model"
            raise click.UsageError(message)
        file = str(bundle / TOPOLOGY)
    topology, findings = load(file, name=name, define=dict(define), model=model)
    if bundle is not None and topology is not None:
        findings = ()  # the bundle stands; its manifest tells what was allowed
    view.problems(findings)
    if topology is None or any(one.severity is Severity.ERROR for one in findings):
        raise SystemExit(view.FINDINGS)
    told = _report(topology, bundle)
    view.result(json.dumps(told, indent=1) if style == "json" else as_text(told))
    breaches = tuple(_breaches(topology, told))
    view.problems(breaches)
    raise SystemExit(view.FINDINGS if breaches else view.CLEAN)


def _report(topology: "Topology", bundle: Path | None) -> "Report":
    """What is told of a topology; raises TopocError for what has no lowering yet."""
    from topoc.lowering.architecture import read
    from topoc.lowering.cli.plan.gather import gather
    from topoc.lowering.plan import plan
    from topoc.lowering.refuse import refusals

    refused = tuple(refusals(topology))
    if refused:
        raise TopocError(*refused)
    architecture = read(topology.layers.config)
    if bundle is None:
        return gather(plan(topology, architecture))
    from topoc.lowering.bundle.reader import open_bundle
    from topoc.lowering.ir import DType

    said = open_bundle(bundle, check=False).manifest
    return gather(plan(topology, architecture, dtype=DType(said.precision)), said.quantization)


def _breaches(topology: "Topology", told: "Report") -> Iterator[Diagnostic]:
    """Budgets that only a plan can measure; lint has seen to the others."""
    from topoc.lowering.cli.size import size

    for budget, row in zip(topology.budgets, told["budgets"], strict=True):
        value, spare = row["value"], row["headroom"]
        if value is None or spare is None or budget.measure != "disk per chunk":
            continue
        if spare < 0 or (spare == 0 and budget.relation in {"<", ">"}):
            is_ = f"{budget.measure} is {size(round(value))} in `{row['chunk']}`"
            message = f"{is_}, and the budget is {budget.relation} {size(round(budget.value))}"
            help_ = "change the chunks, or state the budget anew"
            yield error("expect.breach", message, budget.span, help=help_)
