"""Sharing the cache of a layer that owns none."""

from collections.abc import Iterator

from topoc.dsl.diagnostic import Label
from topoc.dsl.lint.gather import by_rule
from topoc.dsl.lint.rule import Evidence, Finding, Rule, Trust
from topoc.dsl.lint.subject import Subject
from topoc.dsl.resolve.selector import listed


class ShareWithoutOwner(Rule):
    """The donor of a shared cache owns it.

    A reader takes what the donor's own attention saw in the same call. A layer that reads the cache
    of another has nothing to hand on, so that chains of sharing are written to their end.
    """

    coherence = True
    evidence = (
        Evidence(
            "a loader that finds no owner of a reader's kind of attention crashes",
            "vllm-project/vllm#48365",
            "2026-07-11",
            Trust.REPORTED,
            toolchain="vLLM",
            figure="ValueError: 'sliding_attention' is not in list",
        ),
    )
    bad = """
topology share_a_sharer {
  model "gemma4.json"
  target ane ios18 a19
  context 2048
  kv { L16: share L15 }
  chunk chunk1 = ple + L0-14
  chunk chunk2 = L15-34 + norm + head(argmax)
}
"""
    good = """
topology share_an_owner {
  model "gemma4.json"
  target ane ios18 a19
  context 2048
  kv { L16: share L13 }
  chunk chunk1 = ple + L0-14
  chunk chunk2 = L15-34 + norm + head(argmax)
}
"""

    def _check(self, subject: Subject) -> Iterator[Finding]:
        blocks = subject.topology.blocks
        faulty = (
            (block, donor)
            for block, donor in subject.sharers
            if donor != block.index and blocks[donor].kv.donor not in {None, donor}
        )
        for span, donor, layers in by_rule(subject, faulty):
            root = blocks[donor].kv.donor
            message = f"{listed(layers)} share{'s' * (len(layers) == 1)} L{donor}, which owns no KV"
            related = (Label(subject.at(blocks[donor]), f"L{donor} shares L{root}"),)
            help_ = f"share L{root}, the owner"
            yield self.flag(span, message, help=help_, related=related)
