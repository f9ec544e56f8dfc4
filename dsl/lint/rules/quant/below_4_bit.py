"""Palettes of two or three bits for weights that were not trained for them."""

from collections.abc import Iterator

from topoc.dsl.lint.gather import by_recipe
from topoc.dsl.lint.rule import Evidence, Finding, Rule, Trust
from topoc.dsl.lint.subject import Subject

FEWEST = 4


class Below4Bit(Rule):
    """Fewer than four bits take weights that were trained with them.

    Palettes of two and of three bits over the weights of Gemma 4 gave text without sense, on any
    unit. Models that ship with two bits were trained with the palettes in place; a topology says so
    by allowing this.
    """

    evidence = (
        Evidence(
            "two bits, groups of 32: fragments of many languages on every prompt",
            "CoreML-LLM docs/EXPERIMENTS.md:89-97",
            "2026-04-13",
            Trust.MEASURED,
            toolchain="coremltools 9.0",
            device="Mac, CPU, Gemma 4 E2B",
            figure="546 MB in place of 1,091; no sense on 3 prompts of 3",
        ),
        Evidence(
            "three bits: repeated fragments, still no sense",
            "CoreML-LLM docs/EXPERIMENTS.md:99-103",
            "2026-04-13",
            Trust.MEASURED,
            toolchain="coremltools 9.0",
            device="Mac, CPU, Gemma 4 E2B",
            figure="818 MB",
        ),
    )
    remedy = "Use four bits, or allow this and say how the weights were trained."
    bad = """
topology three_bits {
  model "gemma3.json"
  target ane ios18 a17
  context 2048
  chunk chunk1 = L0-8
  chunk chunk2 = L9-17 + norm + head(argmax)
  quantize { weights: palettize(bits = 3, group = 32) }
}
"""
    good = """
topology four_bits {
  model "gemma3.json"
  target ane ios18 a17
  context 2048
  chunk chunk1 = L0-8
  chunk chunk2 = L9-17 + norm + head(argmax)
  quantize { weights: palettize(bits = 4, group = 32) }
}
"""

    def _check(self, subject: Subject) -> Iterator[Finding]:
        faulty = (
            recipe
            for recipe in subject.topology.recipes
            for one in recipe.schemes
            if one.name == "palettize" and int(dict(one.arguments)["bits"]) < FEWEST
        )
        for span, tensors in by_recipe(subject, faulty):
            message = f"palettes below 4 bits leave no sense in untrained weights ({tensors})"
            words = "two and three bits were tried"
            help_ = "write `bits = 4`, or allow this and say how the weights were trained"
            yield self.flag(span, message, words, help=help_)
