"""Expected units and compute plans as people read them."""

from collections.abc import Iterator

from topoc.dsl.lint.mil import Package
from topoc.dsl.lint.placement import table
from topoc.lowering.lint.compute_plan import Comparison, ComputePlan

HEAD = ("op", "count", "expected", "why")
PREDICTED = "predicted from what was seen of other programs; a device may place ops otherwise"


def ops_text(package: Package) -> str:
    """The compute ops of each function by type, with the unit that is expected to run them."""
    lines = [f"{package.path}: {PREDICTED}"]
    rows = list(table(package))
    for function in package.functions:
        own = [one for one in rows if one.function == function.name]
        cells = [(one.kind, f"{one.count:,}", one.unit, one.why) for one in own]
        units = " · ".join(
            f"{sum(one.count for one in own if one.unit == unit):,} {unit}"
            for unit in ("ane", "cpu", "unknown")
        )
        lines += ["", f"{function.name}: {len(function.compute):,} ops, {units}"]
        lines += _aligned([HEAD, *cells])
    return "\n".join(lines)


def comparison_text(plan: ComputePlan, found: Comparison) -> str:
    """How a device's plan and the prediction differ."""
    total = found.agreed + sum(one.count for one in found.differences)
    lines = [
        f"plan of {plan.device}, {plan.system}: {found.agreed:,} of {total:,} predictions agree",
        f"  ops of which nothing was predicted or planned: {found.open:,}",
        f"  ops that only the package or only the plan has: {found.unmatched:,}",
    ]
    cells = [
        (one.kind, f"{one.count:,}", one.expected, one.planned, f"{one.function}/{one.first}")
        for one in found.differences
    ]
    if cells:
        lines += _aligned([("op", "count", "expected", "planned", "one of them"), *cells])
    return "\n".join(lines)


def _aligned(rows: list[tuple[str, ...]]) -> Iterator[str]:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        cells = [
            cell.rjust(width) if at == 1 else cell.ljust(width)
            for at, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        yield f"  {'  '.join(cells)}".rstrip()
