"""Owning a cache without the weights that fill it."""

from collections.abc import Iterator

from topoc.dsl.lint.gather import by_rule
from topoc.dsl.lint.rule import Evidence, Finding, Rule, Trust
from topoc.dsl.lint.subject import Subject
from topoc.dsl.resolve.selector import listed


class NoOwnWeights(Rule):
    """A layer that owns a cache has key and value weights.

    Checkpoints whose later layers share KV were trained without projections for those layers. No
    choice of layout can bring them back.
    """

    coherence = True
    evidence = (
        Evidence(
            "a loader that wants projections of every layer finds none for those that share",
            "Blaizzy/mlx-vlm#1301",
            "2026-06-05",
            Trust.REPORTED,
            toolchain="mlx-vlm 0.6.1, Gemma 4 E2B",
            figure="ValueError: Missing 60 parameters",
        ),
    )
    bad = """
topology own_without {
  model "gemma4.json"
  target ane ios18 a19
  context 2048
  kv { L15-16: own }
  chunk chunk1 = ple + L0-14
  chunk chunk2 = L15-34 + norm + head(argmax)
}
"""
    good = """
topology own_with {
  model "gemma4.json"
  target ane ios18 a19
  context 2048
  kv { L13-14: own }
  chunk chunk1 = ple + L0-14
  chunk chunk2 = L15-34 + norm + head(argmax)
}
"""

    def _check(self, subject: Subject) -> Iterator[Finding]:
        faulty = (
            (block, -1) for block in subject.owners if not subject.layer(block.index).kv_weights
        )
        for span, _, layers in by_rule(subject, faulty):
            verb = "has" if len(layers) == 1 else "have"
            message = f"{listed(layers)} {verb} no K and V weights in this checkpoint"
            donors = sorted({subject.layer(at).donor for at in layers} - {None}, key=str)
            names = ", ".join(f"L{donor}" for donor in donors)
            yield self.flag(span, message, help=f"let them share {names}, as the checkpoint does")
