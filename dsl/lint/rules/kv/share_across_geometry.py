"""Sharing a cache of another shape."""

from collections.abc import Iterator

from topoc.dsl.lint.gather import by_rule
from topoc.dsl.lint.rule import Evidence, Finding, Rule, Trust
from topoc.dsl.lint.subject import Subject
from topoc.dsl.resolve.selector import listed


class ShareAcrossGeometry(Rule):
    """Reader and donor have caches of one geometry.

    The rows of a cache are as wide as the donor's heads and rotated as the donor's kind of layer
    rotates them. A layer of another kind, head width or number of KV heads can't read them.
    """

    coherence = True
    evidence = (
        Evidence(
            "a runtime takes a donor only if its attention is of the reader's type",
            "vllm-project/vllm#18212",
            "2025-05-15",
            Trust.REPORTED,
            toolchain="vLLM",
        ),
    )
    bad = """
topology share_across {
  model "gemma4.json"
  target ane ios18 a19
  context 2048
  kv { L15-34: share L13 }
  chunk chunk1 = ple + L0-14
  chunk chunk2 = L15-34 + norm + head(argmax)
}
"""
    good = """
topology share_alike {
  model "gemma4.json"
  target ane ios18 a19
  context 2048
  kv {
    L15-34 sliding: share L13
    L15-34 full:    share L14
  }
  chunk chunk1 = ple + L0-14
  chunk chunk2 = L15-34 + norm + head(argmax)
}
"""

    def _check(self, subject: Subject) -> Iterator[Finding]:
        faulty = (
            (block, donor)
            for block, donor in subject.sharers
            if donor != block.index and _shape(subject, block.index) != _shape(subject, donor)
        )
        for span, donor, layers in by_rule(subject, faulty):
            reader = _words(_shape(subject, layers[0]))
            message = f"{listed(layers)} can't read the KV of L{donor}: the geometries differ"
            words = f"{reader} against {_words(_shape(subject, donor))}"
            yield self.flag(span, message, words, help="share an owner of the same geometry")


def _shape(subject: Subject, index: int) -> tuple[str, int, int]:
    """What a cache's rows depend on."""
    layer = subject.layer(index)
    return layer.kind.value, layer.kv_heads, layer.head_dim


def _words(shape: tuple[str, int, int]) -> str:
    kind, heads, width = shape
    return f"{kind}, {heads} x {width}"
