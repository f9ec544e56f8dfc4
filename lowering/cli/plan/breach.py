"""Budgets that a plan breaks: bytes on disk, and milliseconds beyond any doubt."""

from topoc.dsl.model import Budget
from topoc.lowering.cli.milliseconds import spelled
from topoc.lowering.cli.plan import report
from topoc.lowering.cli.size import size


def amount(budget: Budget, row: report.Budget, told: report.Report) -> tuple[str, str] | None:
    """What a broken budget comes to and its limit, in words; None where it holds.

    A prediction breaks a budget only with its whole interval: what may hold is no error.
    """
    value, spare = row["value"], row["headroom"]
    if value is None or spare is None:
        return None
    if budget.measure == "disk per chunk":
        broken = spare < 0 or (spare == 0 and budget.relation in {"<", ">"})
        words = f"{size(round(value))} in `{row['chunk']}`", size(round(budget.value))
        return words if broken else None
    if budget.measure == "ms per step":
        (ms, *_) = [one["ms"] for one in told["calls"] if one["ms"] and one["ms"]["ms"] == value]
        beyond = ms["low"] > budget.value if budget.relation[0] == "<" else False
        return (f"{spelled(ms)}, as predicted", f"{budget.value:g} ms") if beyond else None
    return None
