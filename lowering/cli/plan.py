"""`topoc plan`: what a topology would become, without weights."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from topoc.dsl.cli import options, view
from topoc.dsl.diagnostic import Severity, TopocError
from topoc.dsl.load import load

if TYPE_CHECKING:
    from topoc.lowering.manifest import Input, Output, Step
    from topoc.lowering.plan import PackagePlan, Plan


@click.command("plan")
@click.argument("file", metavar="FILE")
@click.option("--format", "style", type=click.Choice(["text", "json"]), default="text")
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
    """Show the chunks and functions of FILE: layers, weights, features and KV bytes a call."""
    from topoc.lowering.architecture import read
    from topoc.lowering.plan import plan
    from topoc.lowering.refuse import refusals

    topology, findings = load(file, name=name, define=dict(define), model=model)
    view.problems(findings)
    if topology is None or any(one.severity is Severity.ERROR for one in findings):
        raise SystemExit(view.FINDINGS)
    refused = tuple(refusals(topology))
    if refused:
        raise TopocError(*refused)
    laid = plan(topology, read(topology.layers.config))
    view.result(json.dumps(as_data(laid), indent=1) if style == "json" else as_text(laid))


def as_text(plan: "Plan") -> str:
    """A block a chunk, a block a function of it."""
    topology = plan.topology
    lines = [f"{topology.name}: {topology.doc}", f"context {topology.context}"]
    if plan.host_embeds:
        arch = plan.architecture
        lines.append(f"host table embed: {arch.vocabulary} rows of {arch.hidden}")
    for package in plan.packages:
        lines += ["", _headline(package)]
        for step in _steps(plan, package):
            lines.append(f"  {step.function} on {step.unit}: {_traffic(step)}")
            lines += map(_feature, [*step.inputs, *step.outputs])
    return "\n".join(lines)


def as_data(plan: "Plan") -> dict[str, Any]:  # JSON
    """The same, for machines."""
    return {
        "topology": plan.topology.name,
        "context": plan.topology.context,
        "chunks": [
            {
                "name": package.name,
                "layers": list(package.chunk.layers),
                "fp16_bytes": package.loaded_bytes,
                "functions": [_function(step) for step in _steps(plan, package)],
            }
            for package in plan.packages
        ],
    }


def _headline(package: "PackagePlan") -> str:
    layers = package.chunk.layers
    span = f"L{layers[0]}-{layers[-1]}, {len(layers)} layers" if layers else "no layers"
    kinds = [part.kind for part in package.chunk.parts if part.kind != "layers"]
    return f"{package.name}: {', '.join([span, *kinds])}; {package.loaded_bytes / 1e6:.1f} MB fp16"


def _steps(plan: "Plan", package: "PackagePlan") -> "Iterator[Step]":
    for function in plan.functions:
        yield from (step for step in function.steps if step.package == package.path)


def _traffic(step: "Step") -> str:
    into, out = kv_bytes(step)
    return f"KV {into / 1e6:.2f} MB in, {out / 1e6:.2f} MB out"


def kv_bytes(step: "Step") -> tuple[int, int]:
    """The bytes of caches that a step reads and hands back."""
    into = [one for one in step.inputs if one.source.kind == "buffer"]
    out = [one for one in step.outputs if one.sink.kind in {"buffer", "rows"}]
    return sum(map(_bytes, into)), sum(map(_bytes, out))


def _bytes(feature: "Input | Output") -> int:
    from topoc.lowering.ir import DType, TensorType

    return TensorType(DType(feature.dtype), feature.shape).bytes


def _feature(feature: "Input | Output") -> str:
    arrow, port = ("<-", feature.source) if hasattr(feature, "source") else ("->", feature.sink)
    shape = "×".join(map(str, feature.shape))
    name = f" {port.name}" if port.name else ""
    return f"    {feature.feature:20}{shape:>18} {feature.dtype}  {arrow} {port.kind}{name}"


def _function(step: "Step") -> dict[str, Any]:  # JSON
    into, out = kv_bytes(step)
    return {
        "function": step.function,
        "unit": step.unit,
        "kv_bytes_in": into,
        "kv_bytes_out": out,
        "inputs": [_described(one) for one in step.inputs],
        "outputs": [_described(one) for one in step.outputs],
    }


def _described(feature: "Input | Output") -> dict[str, Any]:  # JSON
    return {"name": feature.feature, "shape": list(feature.shape), "dtype": feature.dtype}
