"""The best splits of a topology, in order; or those that no other beats in two ways at once."""

from collections.abc import Iterator, Sequence

from attrs import evolve, frozen

from topoc.dsl.diagnostic import Diagnostic, Place, TopocError, error
from topoc.dsl.model import Budget, Function, Topology
from topoc.dsl.plain import Plain
from topoc.dsl.words import amount
from topoc.lowering.cost.features import Features
from topoc.lowering.cost.predict import Change, Estimate, attoseconds, call, change
from topoc.lowering.cost.profile import Profile
from topoc.lowering.split.judge import Judge
from topoc.lowering.split.search import (
    BYTES,
    LARGEST,
    OBJECTIVES,
    TIME,
    Limits,
    Term,
    key,
    paths,
)
from topoc.lowering.split.space import Cuts, Space, space

_RESTART = 24  # chunks that left the graph: after so many, what is left is measured anew
_MOST = 20_000  # splits that rules may refuse one by one before the search gives up


@frozen(kw_only=True, eq=False, repr=False)
class Choice(Plain):
    """One split: its boundaries, what its chunks cost, and how it stands to the best."""

    cuts: Cuts
    features: tuple[Features, ...]
    estimate: Estimate | None
    change: Change | None  # from the best; None for itself and without costs

    @property
    def bytes(self) -> int:
        """KV that crosses chunk walls in a decode step."""
        return sum(one.kv for one in self.features)

    @property
    def memory(self) -> int:
        """The largest chunk's weights as loaded."""
        return max(one.loaded for one in self.features)


@frozen(kw_only=True, eq=False, repr=False)
class Search(Plain):
    """What a search found, whose graph holds the chunks that may be, and what was refused."""

    space: Space
    judge: Judge
    limits: Limits
    early: tuple[tuple[str, int], ...]  # budgets that kept chunks out of the graph, and how many
    bounds: tuple[tuple[str, str | None], ...]  # those of whole splits, and the least of any split
    choices: tuple[Choice, ...] = ()


def prepare(topology: Topology, profile: Profile | None, least: int, most: int) -> Search:
    """The graph of a topology within its budgets. Raises TopocError where nothing can be cut."""
    function = _decode(topology)
    found = space(topology, function, profile)
    if least > found.layers:
        raise _too_many(topology, found.layers)
    asked = limits = Limits(least=least, most=min(most, found.layers))
    early, whole = [], []
    for budget in topology.budgets:
        gone = _within(found, budget.measure, budget.relation, budget.value)
        said = f"{budget.measure} {budget.relation} {amount(budget.measure, budget.value)}"
        early += [(said, gone)] if gone else []
        before, limits = limits, _bounded(limits, found, budget)
        whole += [(said, budget.measure)] if limits != before else []
    bounds = tuple((said, _least(found, asked, measure)) for said, measure in whole)
    return Search(space=found, judge=Judge(found), limits=limits, early=tuple(early), bounds=bounds)


def _too_many(topology: Topology, layers: int) -> TopocError:
    message = f"`{topology.name}` has {layers} layers, which make {layers} chunks at most"
    at = topology.span or Place(topology.name)
    return TopocError(error("value.range", message, at, help="ask for fewer with --chunks"))


def _least(found: Space, asked: Limits, measure: str) -> str | None:
    """The least that a split can come to by a measure, whatever else bounds it."""
    if measure == "chunks":
        return None
    term = BYTES if measure == "kv io per step" else TIME
    cuts = next(paths(found.graph, (term,), asked), None)
    if cuts is None:
        return None
    (value,) = key(found.graph, (term,), cuts)
    whole = value if term is BYTES else value / attoseconds(1) + _host(found)
    return amount(measure, float(f"{whole:.4g}"))


def best(search: Search, objective: str, top: int) -> Search:
    """The first `top` splits by an objective; exact, whatever the rules refuse."""
    order = OBJECTIVES[objective]
    found: list[Cuts] = []
    for cuts in _allowed(search, order, search.limits):
        found.append(cuts)
        if len(found) == top:
            break
    return evolve(search, choices=_choices(search, found))


def pareto(search: Search, one: str, other: str) -> Search:
    """The splits that none beats by two objectives: each next is better by the second.

    Of the best by the first, the best by the second; then the same below what that came to.
    """
    first, second = OBJECTIVES[one][0], OBJECTIVES[other][0]
    decides = TIME if first.greatest else first
    found: list[Cuts] = []
    limits = search.limits
    while True:
        cuts = next(_allowed(search, OBJECTIVES[one], limits), None)
        if cuts is None:
            return evolve(search, choices=_choices(search, found))
        (most,) = key(search.space.graph, (first,), cuts)
        within = evolve(limits, bounds=(*limits.bounds, (first, most)))
        cuts = next(_allowed(search, (second, decides), within))
        found.append(cuts)
        (least,) = key(search.space.graph, (second,), cuts)
        limits = evolve(search.limits, bounds=(*search.limits.bounds, (second, least - 1)))


def _allowed(search: Search, order: Sequence[Term], limits: Limits) -> Iterator[Cuts]:
    """The splits that every rule allows, in order; new bounds when many chunks have left."""
    told: set[Cuts] = set()
    tried = 0
    while True:
        before = len(search.judge.faulty)
        for cuts in paths(search.space.graph, order, limits):
            tried += 1
            if cuts not in told and search.judge.allows(cuts):
                told.add(cuts)
                yield cuts
            elif tried > _MOST:
                raise _unfinished(search.space.topology)
            if len(search.judge.faulty) >= before + _RESTART:
                break
        else:
            return


def _unfinished(topology: Topology) -> TopocError:
    message = f"rules refused {_MOST} splits one by one, and the search gave up"
    help_ = "ask for fewer chunks with --chunks, or state the limit as a budget per chunk"
    at = topology.span or Place(topology.name)
    return TopocError(error("split.unfinished", message, at, help=help_))


def _choices(search: Search, found: Sequence[Cuts]) -> tuple[Choice, ...]:
    profile = search.space.profile
    chunks = [search.space.features(cuts) for cuts in found]
    return tuple(
        Choice(
            cuts=cuts,
            features=one,
            estimate=call(profile, one) if profile else None,
            change=change(profile, chunks[0], one) if profile and at else None,
        )
        for at, (cuts, one) in enumerate(zip(found, chunks, strict=True))
    )


def _decode(topology: Topology) -> Function:
    """The function that splits are judged by; it must run the topology's own chunk list."""
    decodes = [one for one in topology.functions if one.role == "decode"]
    whole = topology.span or Place(topology.name)
    if not decodes:
        message = f"`{topology.name}` has no decode, which splits are judged by"
        raise TopocError(error("split.no-decode", message, whole, help="add `functions decode`"))
    if decodes[0].chunks is not None:
        message = "decode has a chunk list of its own, and only the shared one is cut anew"
        help_ = "write its chunks without `function = decode`"
        raise TopocError(error("split.own-list", message, whole, help=help_))
    if len({one.unit for one in topology.chunks}) > 1:
        message = "the chunks run on different units, and a split can't tell which goes where"
        raise TopocError(
            error("split.units", message, whole, help="give all chunks the same unit first")
        )
    return decodes[0]


_MEASURES = {"layers per chunk": "layers", "fp16 per chunk": "memory"}


def _within(found: Space, measure: str, relation: str, value: float) -> int:
    """Take chunks over a budget out of the graph; lint would, one by one."""
    if measure not in _MEASURES or relation not in {"<", "<="}:
        return 0
    gone = [
        (first, end)
        for first, end, edge in found.graph.edges(data=True)
        if not _holds(end - first if measure == "layers per chunk" else edge["memory"],
                      relation, value)
    ]  # fmt: skip
    found.graph.remove_edges_from(gone)
    return len(gone)


def _holds(value: float, relation: str, most: float) -> bool:
    return value < most if relation == "<" else value <= most


def _host(found: Space) -> float:
    """The ms of a call outside its chunks."""
    return found.profile.coefficients.get("host", 0.0) if found.profile else 0.0


def _bounded(limits: Limits, found: Space, budget: Budget) -> Limits:
    """What a budget of the whole says of the search: fewer chunks, less KV, less time."""
    measure, relation, value = budget.measure, budget.relation, budget.value
    strict = relation in {"<", ">"}
    if measure == "chunks":
        low, high = value + (strict and relation == ">"), value - (strict and relation == "<")
        least = max(limits.least, int(-(-low // 1))) if relation[0] in ">=" else limits.least
        most = min(limits.most, int(high // 1)) if relation[0] in "<=" else limits.most
        return evolve(limits, least=least, most=most)
    if relation not in {"<", "<="}:
        return limits
    if measure == "kv io per step":
        return _most(limits, BYTES, value, strict=strict)
    if measure == "ms per step" and found.profile is not None:
        return _most(limits, TIME, attoseconds(value - _host(found)), strict=strict)
    return limits


def _most(limits: Limits, term: Term, value: float, *, strict: bool) -> Limits:
    whole = int(value // 1)
    if strict and whole == value:
        whole -= 1
    return evolve(limits, bounds=(*limits.bounds, (term, whole)))


def reasons(search: Search, cuts: Cuts) -> tuple[Diagnostic, ...]:
    """Why a split is not allowed; nothing where it is."""
    from topoc.lowering.split.judge import errors

    return errors(search.space.topology, cuts)


__all__ = ["LARGEST", "Choice", "Search", "best", "pareto", "prepare", "reasons"]
