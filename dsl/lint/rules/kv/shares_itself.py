"""A layer that is told to read its own cache."""

from collections.abc import Iterator

from topoc.dsl.lint.rule import Evidence, Finding, Rule, Trust
from topoc.dsl.lint.subject import Subject


class SharesItself(Rule):
    """A layer shares the cache of another layer.

    Sharing means that the layer computes no keys and values of its own. One that shares itself
    would leave its cache empty for ever; `own` is what says that it fills its own.
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
topology shares_itself {
  model "gemma3.json"
  target ane ios18 a17
  context 2048
  kv { L3: share L3 }
  chunk chunk1 = L0-8
  chunk chunk2 = L9-17 + norm + head(argmax)
}
"""
    good = """
topology shares_another {
  model "gemma3.json"
  target ane ios18 a17
  context 2048
  kv { L3: share L2 }
  chunk chunk1 = L0-8
  chunk chunk2 = L9-17 + norm + head(argmax)
}
"""

    def _check(self, subject: Subject) -> Iterator[Finding]:
        for block, donor in subject.sharers:
            if donor == block.index:
                message = f"L{donor} shares itself"
                help_ = f"write `L{donor}: own`, or share an earlier layer"
                yield self.flag(subject.at(block), message, help=help_)
