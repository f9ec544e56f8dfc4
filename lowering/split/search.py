"""Splits in order, the best first: a search from the first boundary that knows how far the end is.

Each beginning of a split is queued under the least that it can still come to (the exact least, by
going backward from the end once), so that whole splits leave the queue in order and no other is
better: the first K are the best K. Edges may be taken out of the graph while it runs.

Where the greatest chunk decides, the values that a chunk has are gone through from below: among
splits whose greatest chunk has this value the sums decide, as anywhere.
"""

from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from heapq import heappop, heappush
from itertools import pairwise
from typing import TYPE_CHECKING

from attrs import evolve, frozen

from topoc.dsl.plain import Plain

if TYPE_CHECKING:
    import networkx as nx

    from topoc.lowering.split.space import Cuts

Values = tuple[int, ...]
# Chunks so far → boundary, and whether the greatest chunk was there → the least that is to come.
Rest = list[dict[tuple[int, bool], Values]]
# The least that a beginning can come to, the beginning, its sums, its bounded sums, the greatest.
_Item = tuple[Values, tuple[int, ...], Values, Values, bool]


@frozen
class Term:
    """A measure of a split: the sum of its chunks', or the greatest."""

    measure: str
    greatest: bool = False


TIME, BYTES = Term("time"), Term("bytes")
EVEN = Term("squares")  # of the chunks' loaded weights: least where they are alike
SLOWEST, LARGEST = Term("time", greatest=True), Term("memory", greatest=True)

# What is best, and what decides between equals; at last the earlier boundaries. After a greatest
# come sums only.
OBJECTIVES: dict[str, tuple[Term, ...]] = {
    "time": (TIME, BYTES, EVEN),
    "bytes": (BYTES, TIME, EVEN),
    "balance": (SLOWEST, TIME, BYTES, EVEN),
    "memory": (LARGEST, TIME, BYTES, EVEN),
}


@frozen(kw_only=True, eq=False, repr=False)
class Limits(Plain):
    """How many chunks, and the most that a split may come to by some terms."""

    least: int
    most: int
    bounds: tuple[tuple[Term, int], ...] = ()


@frozen
class _Edge:
    """A chunk as the search sees it: its end, its sums, and whether it is the greatest."""

    end: int
    sums: Values
    bounded: Values  # by the terms of the bounds
    greatest: bool


def paths(graph: "nx.DiGraph[int]", order: Sequence[Term], limits: Limits) -> Iterator["Cuts"]:
    """Every split within the limits, the best first."""
    first, *sums = order
    if not first.greatest:
        yield from _Pass(graph, order, limits, None).paths()
        return
    values = sorted({edge[first.measure] for _, _, edge in graph.edges(data=True)})
    within = [evolve(limits, bounds=(*limits.bounds, (first, value))) for value in values]
    least = bisect_left(within, x=True, key=lambda one: _feasible(graph, sums, one))
    for value, one in list(zip(values, within, strict=True))[least:]:
        yield from _Pass(graph, sums, one, (first.measure, value)).paths()


def _feasible(graph: "nx.DiGraph[int]", order: Sequence[Term], limits: Limits) -> bool:
    """Whether there is any split; once there is, there is under any looser bound."""
    return next(_Pass(graph, order, limits, None).paths(), None) is not None


def key(graph: "nx.DiGraph[int]", order: Sequence[Term], cuts: "Cuts") -> Values:
    """What a split comes to by each term."""
    edges = [graph[a][b] for a, b in pairwise(cuts)]
    return tuple(
        (max if term.greatest else sum)(edge[term.measure] for edge in edges) for term in order
    )


def _bounded(at: int, edge: _Edge) -> Values:
    return edge.bounded[at : at + 1]


class _Pass:
    """One search by sums, over the chunks within the limits; `greatest` is one that must occur."""

    def __init__(
        self,
        graph: "nx.DiGraph[int]",
        order: Sequence[Term],
        limits: Limits,
        greatest: tuple[str, int] | None,
    ) -> None:
        self.graph, self.limits = graph, limits
        self.end = max(graph.nodes, default=0)
        sums = [(term, most) for term, most in limits.bounds if not term.greatest]
        names = [term.measure for term in order], [term.measure for term, _ in sums]
        self.most = tuple(most for _, most in sums)
        self.edges = {node: self._edges(node, names, greatest) for node in graph.nodes}
        self.start = greatest is None
        self.rest = self._rest([0] * len(order), lambda edge: edge.sums)
        self.kept = [self._rest([0], partial(_bounded, at)) for at in range(len(sums))]

    def _edges(
        self, node: int, names: tuple[list[str], list[str]], greatest: tuple[str, int] | None
    ) -> list[_Edge]:
        """The chunks that begin at a boundary and break no bound by themselves."""
        tops = [(term.measure, most) for term, most in self.limits.bounds if term.greatest]
        return [
            _Edge(
                end,
                tuple(edge[name] for name in names[0]),
                tuple(edge[name] for name in names[1]),
                greatest is not None and edge[greatest[0]] == greatest[1],
            )
            for end, edge in self.graph[node].items()
            if all(edge[name] <= most for name, most in tops)
        ]

    def _rest(self, none: list[int], values: Callable[[_Edge], Values]) -> Rest:
        """From each boundary, after so many chunks, the least of any end within the limits."""
        found: Rest = [{} for _ in range(self.limits.most + 1)]
        for used in range(self.limits.least, self.limits.most + 1):
            found[used][self.end, True] = tuple(none)
        for used in range(self.limits.most - 1, -1, -1):
            after, here = found[used + 1], found[used]
            for node, edges in self.edges.items():
                for seen in (False, True):
                    least = [
                        tuple(
                            map(int.__add__, values(edge), after[edge.end, seen or edge.greatest])
                        )
                        for edge in edges
                        if (edge.end, seen or edge.greatest) in after
                    ]
                    if least:
                        here[node, seen] = min(least)
        return found

    def paths(self) -> Iterator["Cuts"]:
        """The splits in order."""
        none = self.rest[0].get((0, self.start))
        queue: list[_Item] = []
        if none is not None:
            zero = (0,) * len(none)
            queue = [(none, (0,), zero, (0,) * len(self.most), self.start)]
        while queue:
            _, cuts, sums, bounded, seen = heappop(queue)
            if not self._stands(cuts):
                continue
            if cuts[-1] == self.end:
                yield cuts
                continue
            for item in self._longer(cuts, sums, bounded, seen=seen):
                heappush(queue, item)

    def _longer(
        self, cuts: "Cuts", sums: Values, bounded: Values, *, seen: bool
    ) -> Iterator[_Item]:
        """A beginning with each chunk more that leaves it an end."""
        for edge in self.edges[cuts[-1]]:
            state = edge.end, seen or edge.greatest
            left = self.rest[len(cuts)].get(state)
            held = tuple(map(int.__add__, bounded, edge.bounded))
            if left is None or self._over(len(cuts), state, held):
                continue
            so_far = tuple(map(int.__add__, sums, edge.sums))
            least = tuple(map(int.__add__, so_far, left))
            yield least, (*cuts, edge.end), so_far, held, state[1]

    def _stands(self, cuts: "Cuts") -> bool:
        """Whether no chunk of a beginning has left the graph meanwhile."""
        return all(self.graph.has_edge(a, b) for a, b in pairwise(cuts))

    def _over(self, used: int, state: tuple[int, bool], held: Values) -> bool:
        """Whether a beginning breaks a bound, however it ends."""
        return any(
            state not in rest[used] or value + rest[used][state][0] > most
            for rest, value, most in zip(self.kept, held, self.most, strict=True)
        )
