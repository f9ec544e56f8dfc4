"""A device's own account of where a package runs, held against what was expected.

The file is JSON, as `examples/export_compute_plan.py` writes it on a Mac:

    {"schema": "topoc.compute-plan/1", "device": "Mac16,1", "system": "macOS 26.0",
     "functions": {"decode": [
       {"op": "ios18.conv", "output": "l0_q", "unit": "ane", "supported": ["ane", "cpu"],
        "cost": 0.012}]}}

`unit` is the one that the system prefers: "ane", "cpu", "gpu", or null where it does not say.
"""

from collections import Counter
from pathlib import Path
from typing import Any, NoReturn

from attrs import frozen

from topoc.dsl.diagnostic import Place, TopocError, error
from topoc.dsl.lint.mil import Package
from topoc.dsl.lint.placement import expected
from topoc.dsl.plain import Plain
from topoc.lowering.jsonfile import load, named
from topoc.lowering.lint.views import DIALECT

SCHEMA = "topoc.compute-plan/1"
UNITS = ("ane", "cpu", "gpu", None)
WRITER = "write the file with examples/export_compute_plan.py"


@frozen(eq=False, repr=False)
class Seen(Plain):
    """One op of a plan."""

    kind: str
    output: str
    unit: str | None


@frozen(eq=False, repr=False)
class ComputePlan(Plain):
    """What a device said of each function."""

    device: str
    system: str
    functions: dict[str, tuple[Seen, ...]]


@frozen(eq=False, repr=False)
class Difference(Plain):
    """Ops of one type that were expected on one unit and are planned for another."""

    function: str
    kind: str
    count: int
    expected: str
    planned: str
    first: str  # the output of one of them


@frozen(eq=False, repr=False)
class Comparison(Plain):
    """A plan beside the expectations."""

    agreed: int
    open: int  # ops that nothing was expected of, or that the plan says nothing of
    unmatched: int  # ops that only one of the two has
    differences: tuple[Difference, ...]


def read_plan(path: Path) -> ComputePlan:
    """The plan in a file; TopocError tells what in it is not as it should be."""
    if not path.exists():
        message = f"there is no compute plan `{path.name}`"
        raise TopocError(error("compute-plan.missing", message, Place(str(path)), help=WRITER))
    raw = load(path, "compute plan", "compute-plan")
    if raw.get("schema") != SCHEMA:
        _refuse(path, "schema", f"`{SCHEMA}`", raw.get("schema"))
    functions = raw.get("functions")
    if not isinstance(functions, dict) or not functions:
        _refuse(path, "functions", "an object of functions", functions)
    return ComputePlan(
        device=_text(path, raw, "device"),
        system=_text(path, raw, "system"),
        functions={name: _ops(path, name, ops) for name, ops in functions.items()},
    )


def _ops(path: Path, function: str, ops: object) -> tuple[Seen, ...]:
    part = f"functions/{function}"
    if not isinstance(ops, list):
        _refuse(path, part, "a list of ops", ops)
    return tuple(_op(path, f"{part}/{at}", one) for at, one in enumerate(ops))


def _op(path: Path, part: str, one: object) -> Seen:
    if not isinstance(one, dict):
        _refuse(path, part, "an op", one)
    if one.get("unit") not in UNITS:
        _refuse(path, f"{part}/unit", '"ane", "cpu", "gpu" or null', one.get("unit"))
    kind = DIALECT.sub("", _text(path, one, "op", part))
    return Seen(kind, _text(path, one, "output", part), one.get("unit"))


def _text(path: Path, raw: dict[str, Any], key: str, part: str = "") -> str:
    value = raw.get(key)
    if not isinstance(value, str):
        _refuse(path, f"{part}/{key}".strip("/"), "a text", value)
    return value


def _refuse(path: Path, part: str, wanted: str, found: object) -> NoReturn:
    message = f"`{part}` is {named(found)}, and {wanted} is wanted"
    place = Place(str(path), part)
    raise TopocError(error("compute-plan.unreadable", message, place, help=WRITER))


def compare(package: Package, plan: ComputePlan) -> Comparison:
    """The expectation of each compute op beside the plan; constants count on neither side."""
    differing: Counter[tuple[str, str, str, str]] = Counter()
    first: dict[tuple[str, str, str, str], str] = {}
    agreed = unknown = unmatched = 0
    for function in package.functions:
        seen = {one.output: one for one in plan.functions.get(function.name, ())}
        ours = {op.result for op in function.ops}
        unmatched += sum(one.output not in ours for one in seen.values())
        for op in function.compute:
            planned, wanted = seen.get(op.result), expected(function, op).unit
            if planned is None:
                unmatched += 1
            elif planned.unit is None or wanted == "unknown":
                unknown += 1
            elif planned.unit == wanted:
                agreed += 1
            else:
                key = (function.name, op.kind, wanted, planned.unit)
                differing[key] += 1
                first.setdefault(key, op.result)
    differences = tuple(
        Difference(function, kind, count, wanted, unit, first[function, kind, wanted, unit])
        for (function, kind, wanted, unit), count in differing.most_common()
    )
    return Comparison(agreed, unknown, unmatched, differences)
