"""Functions that cut the same caches differently."""

from collections.abc import Iterator

from topoc.dsl.lint.rule import Finding, Rule
from topoc.dsl.lint.subject import Subject
from topoc.dsl.model import Chunk, Store
from topoc.dsl.resolve.selector import listed


class LayoutsDisagree(Rule):
    """All functions see one layout of the caches.

    The caches of one kind in one chunk are one tensor. A function with a chunk list of its own that
    cuts between other layers would need other tensors for the same rows.
    """

    coherence = True
    bad = """
topology cut_elsewhere {
  model "gemma3.json"
  target ane ios18 a17
  context 2048
  chunk chunk1 = L0-8
  chunk chunk2 = L9-17 + norm + head(argmax)
  chunk fill(function = prefill_64) = L0-17
  functions decode, prefill(tokens = 64)
}
"""
    good = """
topology cut_alike {
  model "gemma3.json"
  target ane ios18 a17
  context 2048
  chunk chunk1 = L0-8
  chunk chunk2 = L9-17 + norm + head(argmax)
  chunk fill1(function = prefill_64) = L0-8
  chunk fill2(function = prefill_64) = L9-17
  functions decode, prefill(tokens = 64)
}
"""

    def _check(self, subject: Subject) -> Iterator[Finding]:
        lists = list(subject.lists())
        known = {group for chunk in lists[0].chunks for group in _groups(subject, chunk)}
        for other in lists[1:]:
            for chunk in other.chunks:
                for layers in sorted(_groups(subject, chunk) - known, key=min):
                    message = (
                        f"`{chunk.name}` keeps {listed(layers)} in one cache,"
                        " and other functions do not"
                    )
                    help_ = "cut this list between the same cache owners as the main one"
                    span = chunk.span or subject.whole
                    yield self.flag(span, message, chunk=chunk.name, help=help_)


def _groups(subject: Subject, chunk: Chunk) -> set[frozenset[int]]:
    """The layers of each cache tensor that a chunk takes and gives."""
    kept: dict[str, list[int]] = {}
    for block in subject.owners:
        if block.index in chunk.layers and block.kv.store is Store.IO:
            kept.setdefault(subject.layer(block.index).kind.value, []).append(block.index)
    return {frozenset(layers) for layers in kept.values()}
