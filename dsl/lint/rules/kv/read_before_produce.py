"""A reader that runs before its donor."""

from collections.abc import Iterator

from topoc.dsl.lint.gather import by_rule
from topoc.dsl.lint.rule import Evidence, Finding, Rule, Trust
from topoc.dsl.lint.subject import Subject
from topoc.dsl.resolve.selector import listed


class ReadBeforeProduce(Rule):
    """A shared cache is filled before it is read.

    What a reader takes from its donor is this call's KV, so that the donor is an earlier layer.
    Chunk lists that put the donor's chunk after the reader's get the same code when the list is
    resolved.
    """

    coherence = True
    evidence = (
        Evidence(
            "a runtime takes a donor only if it comes before the layer that reads it",
            "vllm-project/vllm#18212",
            "2025-05-15",
            Trust.REPORTED,
            toolchain="vLLM",
        ),
    )
    bad = """
topology read_too_early {
  model "gemma3.json"
  target ane ios18 a17
  context 2048
  kv { L3: share L4 }
  chunk chunk1 = L0-8
  chunk chunk2 = L9-17 + norm + head(argmax)
}
"""
    good = """
topology read_in_time {
  model "gemma3.json"
  target ane ios18 a17
  context 2048
  kv { L4: share L3 }
  chunk chunk1 = L0-8
  chunk chunk2 = L9-17 + norm + head(argmax)
}
"""

    def _check(self, subject: Subject) -> Iterator[Finding]:
        blocks = subject.topology.blocks
        faulty = (
            (block, donor)
            for block, donor in subject.sharers
            if donor > block.index and blocks[donor].kv.donor is None
        )
        for span, donor, layers in by_rule(subject, faulty):
            verb = "comes" if len(layers) == 1 else "come"
            message = f"{listed(layers)} {verb} before L{donor}, whose KV is shared"
            yield self.flag(span, message, help="share an earlier layer")
