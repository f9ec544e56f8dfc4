"""`topoc schema`: the JSON Schema of what topoc writes."""

import json
from importlib.resources import files
from typing import Any

import click

from topoc.dsl.cli import view

NAMES = ("findings", "manifest", "plan", "split", "diff")


@click.command("schema")
@click.argument("name", type=click.Choice(NAMES), metavar="|".join(NAMES))
def command(name: str) -> None:
    """Print a JSON Schema: of findings (lint), of a manifest, a plan, splits or a diff."""
    view.result(as_text(name).rstrip("\n"))


def as_text(name: str) -> str:
    """The schema of this name, as `docs/schema` holds it."""
    if name == "findings":
        return files("topoc.dsl").joinpath("schema", "findings.json").read_text("utf-8")
    made = {"manifest": _manifest, "plan": _plan, "split": _split, "diff": _diff}[name]
    return json.dumps(made(), indent=2) + "\n"


def _manifest() -> dict[str, Any]:  # JSON values
    from topoc.lowering.manifest import SCHEMA, Manifest
    from topoc.lowering.schema import schema_of

    schema = schema_of(Manifest, "manifest.json of a topoc bundle")
    schema["properties"]["schema"] = {"const": SCHEMA}
    return schema


def _plan() -> dict[str, Any]:  # JSON values
    from topoc.lowering.cli.plan.report import Report
    from topoc.lowering.schema import schema_of

    return schema_of(Report, "topoc plan --format json")


def _split() -> dict[str, Any]:  # JSON values
    from topoc.lowering.cli.split.report import Report
    from topoc.lowering.schema import schema_of

    return schema_of(Report, "topoc split --format json")


def _diff() -> dict[str, Any]:  # JSON values
    from topoc.lowering.cli.diff.report import Report
    from topoc.lowering.schema import schema_of

    return schema_of(Report, "topoc diff --format json")
