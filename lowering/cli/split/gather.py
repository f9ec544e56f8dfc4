"""From a search to what is told of it."""

from collections.abc import Sequence
from itertools import pairwise

from topoc.lowering.cli.milliseconds import Difference, Ms, difference, milliseconds
from topoc.lowering.cli.split import report
from topoc.lowering.cost.predict import Change, Estimate, call, change, estimate
from topoc.lowering.split.known import Known
from topoc.lowering.split.recut import name_of
from topoc.lowering.split.space import Cuts
from topoc.lowering.split.split import Choice, Search


def gather(search: Search, objective: str, known: Sequence[Known]) -> report.Report:
    """Everything that is told."""
    space = search.space
    layouts = [_layout(search, one) for one in known]
    return report.Report(
        topology=space.topology.name,
        objective=objective,
        least=search.limits.least,
        most=search.limits.most,
        costs=space.profile.device if space.profile else None,
        splits=[_split(search, one, known) for one in search.choices],
        layouts=sorted(layouts, key=_rank),
        refused=list(_refused(search)),
        bounds=[report.Bound(budget=said, least=least) for said, least in search.bounds],
    )


def _rank(one: report.Layout) -> tuple[bool, float, str]:
    return bool(one["refused"]), one["step"]["ms"] if one["step"] else 0.0, one["name"]


def sizes(cuts: Cuts) -> list[int]:
    """The layers of each chunk."""
    return [end - first for first, end in pairwise(cuts)]


def _split(search: Search, one: Choice, known: Sequence[Known]) -> report.Split:
    profile = search.space.profile
    alike = [other for other in known if other.cuts == one.cuts]
    return report.Split(
        name=name_of(search.space.topology, one.cuts),
        layers=sizes(one.cuts),
        step=_ms(one.estimate),
        chunks=[milliseconds(estimate(profile, f)) for f in one.features] if profile else None,
        from_best=_difference(one.change),
        kv_bytes=one.bytes,
        largest_bytes=one.memory,
        measured=[figure for other in alike for figure in _figures(other)],
    )


def _figures(known: Known) -> list[report.Figure]:
    return [
        report.Figure(
            topology=known.name, device=one.device, low=one.low, high=one.high, alike=known.alike
        )
        for one in known.figures
    ]


def _layout(search: Search, known: Known) -> report.Layout:
    space, profile = search.space, search.space.profile
    chunks = space.features(known.cuts)
    best = search.choices[0].features if search.choices else None
    step = call(profile, chunks) if profile else None
    apart = change(profile, best, chunks) if profile and best else None
    return report.Layout(
        name=known.name,
        layers=sizes(known.cuts),
        step=_ms(step),
        from_best=_difference(apart),
        measured=_figures(known),
        refused=[report.Reason(code=one.code, message=one.message) for one in known.refused],
    )


def _ms(one: Estimate | None) -> Ms | None:
    return None if one is None else milliseconds(one)


def _difference(one: Change | None) -> Difference | None:
    return None if one is None else difference(one)


def _refused(search: Search) -> list[report.Refused]:
    """Budgets that kept chunks out, then the codes of what lint refused."""
    found = [
        report.Refused(code="expect.breach", chunks=count, splits=0, example=budget)
        for budget, count in search.early
    ]
    judge = search.judge
    for code in dict.fromkeys(one.code for r in judge.refused for one in r.findings):
        chunks = sum(any(one.code == code for one in said) for said in judge.faulty.values())
        splits = [one for one in judge.refused if any(f.code == code for f in one.findings)]
        example = next(f.message for one in splits for f in one.findings if f.code == code)
        found.append(report.Refused(code=code, chunks=chunks, splits=len(splits), example=example))
    return found
