"""An ownership of KV that is not the checkpoint's."""

from collections.abc import Iterator

from topoc.dsl.diagnostic import Severity
from topoc.dsl.lint.gather import by_rule
from topoc.dsl.lint.rule import Evidence, Finding, Rule, Trust
from topoc.dsl.lint.subject import Subject
from topoc.dsl.resolve.selector import listed


class SharedKv(Rule):
    """A layer that reads another cache than it was trained with answers otherwise.

    Which layers share KV is part of a checkpoint. Another choice saves memory and changes the
    output from the first position on.
    """

    severity = Severity.WARNING
    evidence = (
        Evidence(
            "a port that gave shared layers K and V of their own drifts layer by layer",
            "ml-explore/mlx-swift-lm#333",
            "2026-06-08",
            Trust.REPORTED,
            device="Gemma 4 E2B",
            figure="cosine 0.85 at layer 15, 0.03 at layer 34",
        ),
    )
    remedy = (
        "Leave the choice of donors to the checkpoint, or measure the difference and allow this."
    )
    bad = """
topology shared {
  model "gemma3.json"
  target ane ios18 a17
  context 2048
  kv { L4: share L3 }
  chunk chunk1 = L0-8
  chunk chunk2 = L9-17 + norm + head(argmax)
}
"""
    good = """
topology owned {
  model "gemma3.json"
  target ane ios18 a17
  context 2048
  kv { L4: own }
  chunk chunk1 = L0-8
  chunk chunk2 = L9-17 + norm + head(argmax)
}
"""

    def _check(self, subject: Subject) -> Iterator[Finding]:
        faulty = (
            (block, -1 if block.kv.donor is None else block.kv.donor)
            for block in subject.topology.blocks
            if block.kv.donor != subject.layer(block.index).donor
            and _coherent(subject, block.kv.donor)
        )
        for span, donor, layers in by_rule(subject, faulty):
            what = "own KV" if donor < 0 else f"share L{donor}"
            message = f"{listed(layers)}: `{what}` is not what the checkpoint was trained with"
            help_ = "measure the difference, and allow it with what you found"
            yield self.flag(span, message, "the output differs from the start", help=help_)


def _coherent(subject: Subject, donor: int | None) -> bool:
    """Whether a donor owns its cache; where it does not, that is the finding."""
    return donor is None or subject.topology.blocks[donor].kv.donor is None
