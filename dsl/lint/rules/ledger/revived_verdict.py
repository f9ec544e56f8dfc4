"""A topology that was given up, or one that builds the same again."""

from collections.abc import Iterator

from topoc.dsl.diagnostic import Label, Severity
from topoc.dsl.lint.rule import Finding, Rule
from topoc.dsl.lint.subject import Subject
from topoc.dsl.model import Chunk, Topology
from topoc.dsl.resolve.verdict import FINAL


class RevivedVerdict(Rule):
    """A verdict stays in sight, also of whoever builds the same under another name.

    A topology that was shelved, rejected or abandoned keeps its reason and its figure, so that
    nobody builds it again without new evidence. Files beside it, and those that topoc ships, are
    compared by what they build: names, budgets and words do not make a difference.
    """

    remedy = "Read the verdict; compile with `--revisit EVIDENCE` once there is something new."
    bad = """
topology given_up {
  model "gemma3.json"
  target ane ios18 a17
  context 2048
  chunk chunk1 = L0-8
  chunk chunk2 = L9-17 + norm + head(argmax)
  status rejected on 2026-04-17 {
    because "it was slower"
    figure  "31 against 34 tok/s"
    under   "coremltools 9.0"
    revisit "a faster compiler"
  }
}
"""
    good = """
topology alive {
  model "gemma3.json"
  target ane ios18 a17
  context 2048
  chunk chunk1 = L0-8
  chunk chunk2 = L9-17 + norm + head(argmax)
  status shipping on 2026-04-17
}
"""

    def _check(self, subject: Subject) -> Iterator[Finding]:
        topology = subject.topology
        if _stands(topology):
            yield self._declared(subject)
            return
        told = set()  # a copy of a shipped file carries the same verdict
        for other in subject.given_up():
            verdict = (other.name, other.verdict.state, other.verdict.lines)
            if verdict not in told and _stands(other) and _built(other) == _built(topology):
                told.add(verdict)
                yield self._again(subject, other)

    def _declared(self, subject: Subject) -> Finding:
        verdict = subject.topology.verdict
        message = f"`{subject.topology.name}` is {verdict.state}"
        help_ = f"what would change that: {verdict.line('revisit')}"
        span = verdict.span or subject.whole
        note = Severity.NOTE
        return self.flag(span, message, verdict.line("because"), severity=note, help=help_)

    def _again(self, subject: Subject, other: Topology) -> Finding:
        verdict = other.verdict
        name = subject.topology.name
        message = f"`{name}` builds the programs of `{other.name}`, which is {verdict.state}"
        help_ = f"what would change that: {verdict.line('revisit')}"
        why = f"{verdict.line('because')}: {verdict.line('figure')}"
        related = (Label(verdict.span, why),) if verdict.span is not None else ()
        return self.flag(subject.whole, message, related=related, help=help_)


def _stands(topology: Topology) -> bool:
    """Whether a topology was given up, and nobody has reopened it."""
    return topology.verdict.state in FINAL and not topology.verdict.line("reopened")


def _built(topology: Topology) -> tuple[object, ...]:
    """All that decides which programs come of a topology; names do not."""
    functions = tuple(
        (one.role, one.tokens, one.write, one.separate, one.unit, _cut(one.chunks))
        for one in topology.functions
    )
    caches = tuple((one.attention, one.kv) for one in topology.blocks)
    return (
        (topology.target.unit, topology.target.deployment, topology.features),
        (topology.layers.layers, topology.layers.hidden, topology.layers.vocabulary),
        (topology.context, topology.taps, topology.recipes),
        (caches, functions, _cut(topology.chunks)),
    )


def _cut(chunks: tuple[Chunk, ...] | None) -> tuple[object, ...]:
    return tuple((chunk.parts, chunk.unit) for chunk in chunks or ())
