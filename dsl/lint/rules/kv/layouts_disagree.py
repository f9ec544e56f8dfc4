"""A function whose own chunks cut through a cache."""

from collections.abc import Iterator

from topoc.dsl.lint.rule import Evidence, Finding, Rule, Trust
from topoc.dsl.lint.subject import Subject
from topoc.dsl.model import Chunk, Store
from topoc.dsl.resolve.selector import listed


class LayoutsDisagree(Rule):
    """All functions see one layout of the caches.

    The caches of one kind in one chunk of the main list are one tensor, which other functions take
    as it is. A chunk of their own may take several of them. One that cuts through a tensor would
    pass all of it in for a part, and the next chunk of the same call would do so again.
    """

    coherence = True
    evidence = (
        Evidence(
            "a prefill stored L8-14 by the chunks of another layout, where decode did not look",
            "CoreML-LLM Sources/CoreMLLLM/ChunkedEngine.swift:2404-2446",
            "2026-05",
            Trust.REPORTED,
        ),
    )
    bad = """
topology cut_elsewhere {
  model "gemma3.json"
  target ane ios18 a17
  context 2048
  chunk chunk1 = L0-8
  chunk chunk2 = L9-17 + norm + head(argmax)
  chunk fill1(function = prefill_64) = L0-5
  chunk fill2(function = prefill_64) = L6-17
  functions decode, prefill(tokens = 64)
}
"""
    good = """
topology caches_stay_whole {
  model "gemma3.json"
  target ane ios18 a17
  context 2048
  chunk chunk1 = L0-8
  chunk chunk2 = L9-17 + norm + head(argmax)
  chunk fill(function = prefill_64) = L0-17
  functions decode, prefill(tokens = 64)
}
"""

    def _check(self, subject: Subject) -> Iterator[Finding]:
        lists = list(subject.lists())
        known = {group for chunk in lists[0].chunks for group in _groups(subject, chunk)}
        for other in lists[1:]:
            for chunk in other.chunks:
                for layers in sorted(known, key=min):
                    part = layers.intersection(chunk.layers)
                    if part and part != layers:
                        yield self._cut(subject, chunk, part, layers)

    def _cut(
        self, subject: Subject, chunk: Chunk, part: frozenset[int], layers: frozenset[int]
    ) -> Finding:
        message = f"`{chunk.name}` runs {listed(part)} of a cache that holds {listed(layers)}"
        help_ = "cut this list between caches of the main one; a chunk may hold several"
        span = chunk.span or subject.whole
        return self.flag(span, message, chunk=chunk.name, help=help_)


def _groups(subject: Subject, chunk: Chunk) -> set[frozenset[int]]:
    """The layers of each cache tensor that a chunk of the main list takes and gives."""
    kept: dict[object, list[int]] = {}
    for block in subject.owners:
        if block.index in chunk.layers and block.kv.store is Store.IO:
            layer = subject.layer(block.index)
            stored = (layer.kind, layer.kv_heads, layer.head_dim, block.kv)
            kept.setdefault((*stored, block.attention.window), []).append(block.index)
    return {frozenset(layers) for layers in kept.values()}
