"""Which splits may be: what lint says of them, asked of the rules as they are.

A whole split is judged by running every rule over it. Where a finding stands at one of its chunks,
and stands there still when the rest is cut layer by layer and when it is not cut at all, the chunk
alone is at fault: it leaves the graph, and no split with it is looked at again.
"""

from collections.abc import Iterator, Mapping
from itertools import pairwise

from attrs import define, field, frozen

from topoc.dsl.diagnostic import Diagnostic, Severity
from topoc.dsl.lint.engine import lint
from topoc.dsl.model import Topology
from topoc.dsl.plain import Plain
from topoc.dsl.source import Span
from topoc.lowering.split.recut import recut
from topoc.lowering.split.space import Cuts, Space

Run = tuple[int, int]  # a chunk: its first layer, and one past its last


@frozen(kw_only=True, eq=False, repr=False)
class Refusal(Plain):
    """Why a split may not be: the findings, and the chunks that no split may have, by code."""

    cuts: Cuts
    findings: tuple[Diagnostic, ...]
    chunks: tuple[tuple[Run, str], ...] = ()


@define(eq=False, repr=False)
class Judge:
    """Judges splits, remembers what it refused, and takes faulty chunks out of the graph."""

    space: Space
    refused: list[Refusal] = field(factory=list)
    faulty: dict[Run, tuple[Diagnostic, ...]] = field(factory=dict)
    _sound: set[Cuts] = field(factory=set)

    def allows(self, cuts: Cuts) -> bool:
        """Whether no rule refuses a split."""
        if cuts in self._sound:
            return True
        found = errors(self.space.topology, cuts)
        if not found:
            self._sound.add(cuts)
            return True
        chunks = tuple(self._faults(cuts, found))
        self.refused.append(Refusal(cuts=cuts, findings=found, chunks=chunks))
        for run, code in chunks:
            if self.space.graph.has_edge(*run):
                self.space.graph.remove_edge(*run)
            self.faulty[run] = tuple(one for one in found if one.code == code)
        return False

    def _faults(self, cuts: Cuts, found: tuple[Diagnostic, ...]) -> Iterator[tuple[Run, str]]:
        for at, run in enumerate(pairwise(cuts)):
            codes = {one.code for one in found if _stands_at(one, cuts, at, self.space.topology)}
            if codes:
                yield from ((run, code) for code in sorted(codes & self._alone(run)))

    def _alone(self, run: Run) -> set[str]:
        """The codes of errors at a chunk however the rest is cut: in single layers, and not."""
        first, end = run
        topology, count = self.space.topology, self.space.layers
        finest = (*range(first + 1), *range(end, count + 1))
        coarsest = tuple(sorted({0, first, end, count}))
        told = [
            {one.code for one in errors(topology, cuts) if _stands_at(one, cuts, at, topology)}
            for cuts, at in ((finest, first), (coarsest, int(first > 0)))
        ]
        return told[0] & told[1]


def errors(topology: Topology, cuts: Cuts) -> tuple[Diagnostic, ...]:
    """The errors that lint finds in a split."""
    found = lint(recut(topology, cuts))
    return tuple(one for one in found if one.severity is Severity.ERROR)


def _stands_at(finding: Diagnostic, cuts: Cuts, at: int, topology: Topology) -> bool:
    """Whether a finding points at a chunk of a split, in the split's own text."""
    here = recut(topology, cuts)
    chunk, whole = here.chunks[at].span, here.span
    if chunk is None or whole is None:
        message = "a split that was made has places in its own text"
        raise AssertionError(message)
    places = [finding.at.at, *(one.at for one in finding.related)]
    spans = [one for one in places if isinstance(one, Span)]
    own = [one for one in spans if one.source.name == whole.source.name]
    return any(one.line == chunk.line for one in own)


def tally_refusals(judge: Judge) -> Mapping[str, int]:
    """How many splits each rule refused, of those that were looked at."""
    counts: dict[str, int] = {}
    for refusal in judge.refused:
        for code in sorted({one.code for one in refusal.findings}):
            counts[code] = counts.get(code, 0) + 1
    return counts
