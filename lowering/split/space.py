"""All ways to cut a model into chunks, as the paths of a graph from its first layer to the end.

A node is a boundary: 0 before the first layer, n after the last. An edge from a to b is the chunk
of layers a to b - 1. What it costs depends on nothing but a and b: shared KV leaves a chunk if some
later layer reads it, whichever chunk that layer is in.
"""

from itertools import pairwise
from typing import TYPE_CHECKING

from attrs import frozen

from topoc.dsl.model import Chunk, Function, Part, Topology
from topoc.dsl.plain import Plain
from topoc.lowering.cost.features import Features, Tally, tally
from topoc.lowering.cost.predict import chunk_time
from topoc.lowering.cost.profile import Profile

if TYPE_CHECKING:
    import networkx as nx

Cuts = tuple[int, ...]  # boundaries, the first 0 and the last the number of layers


@frozen(kw_only=True, eq=False, repr=False)
class Space(Plain):
    """A topology under split, its decode function, and the graph of boundaries."""

    topology: Topology
    function: Function
    profile: Profile | None
    counted: Tally
    graph: "nx.DiGraph[int]"

    @property
    def layers(self) -> int:
        """How many layers there are to cut."""
        return len(self.topology.blocks)

    def features(self, cuts: Cuts) -> tuple[Features, ...]:
        """The features of each chunk of a split."""
        pairs = pairwise(cuts)
        return tuple(self.run(first, end) for first, end in pairs)

    def run(self, first: int, end: int) -> Features:
        """The features of one chunk, whether or not it is still in the graph."""
        before, after = others(self.topology)
        parts = (*(before if first == 0 else ()), *(after if end == self.layers else ()))
        return self.counted.run(first, end - 1, _counted(parts))


def space(topology: Topology, function: Function, profile: Profile | None) -> Space:
    """The graph with every chunk there can be; each edge holds its measures."""
    import networkx as nx

    counted = tally(topology, function)
    graph: nx.DiGraph[int] = nx.DiGraph()
    count = len(topology.blocks)
    made = Space(
        topology=topology, function=function, profile=profile, counted=counted, graph=graph
    )
    for first in range(count):
        for end in range(first + 1, count + 1):
            graph.add_edge(first, end, **_measures(made.run(first, end), profile))
    return made


def _measures(found: Features, profile: Profile | None) -> dict[str, int]:
    time = chunk_time(profile, found) if profile else 0
    even = found.loaded * found.loaded
    return {"time": time, "bytes": found.kv, "memory": found.loaded, "squares": even}


def others(topology: Topology) -> tuple[tuple[Part, ...], tuple[Part, ...]]:
    """The parts before the first layer and after the last, whichever chunks they are in."""
    parts = [part for chunk in topology.chunks for part in chunk.parts if part.kind != "layers"]
    before = tuple(one for one in parts if one.kind in {"embed", "ple"})
    return before, tuple(one for one in parts if one.kind not in {"embed", "ple"})


def _counted(parts: tuple[Part, ...]) -> list[str]:
    return [one.kind for one in parts if one.head is None or one.head.mode != "hidden"]


def cuts_of(chunks: tuple[Chunk, ...]) -> Cuts:
    """The boundaries of a chunk list; chunks without layers have none."""
    ends = [one.layers[-1] + 1 for one in chunks if one.layers]
    return (0, *ends)


def spelled(cuts: Cuts) -> str:
    """A split as its number of layers in each chunk: 8/17/10."""
    return "/".join(str(end - first) for first, end in pairwise(cuts))
