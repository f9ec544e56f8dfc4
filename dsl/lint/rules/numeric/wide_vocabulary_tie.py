"""An argmax in fp16 over very many classes."""

from collections.abc import Iterator

from topoc.dsl.diagnostic import Severity
from topoc.dsl.lint.rule import Evidence, Finding, Rule, Trust
from topoc.dsl.lint.subject import Subject


class WideVocabularyTie(Rule):
    """Over a quarter of a million classes, fp16 meets ties, and devices break them differently.

    Logits near 25 are 0.016 apart in fp16. Where two classes round to one value, a phone took
    another than a Mac did, and text began to loop. On the host, fp16 logits and a repetition
    penalty over all classes mended that.
    """

    severity = Severity.NOTE
    placement = True
    evidence = (
        Evidence(
            "a phone chooses another of two classes that tie, and generation loops; a Mac does not",
            "CoreML-LLM docs/QWEN35_FULL_VOCAB_REP_PENALTY.md:7-19",
            "2026-04-25",
            Trust.MEASURED,
            toolchain="coremltools 9.0, iOS 26",
            device="iPhone 17 Pro, Qwen3.5 with 248,320 classes",
            figure="gaps up to 0.015 at logits of 25",
        ),
        Evidence(
            "with fp16 logits and a penalty in fp32 on the host the text is clean",
            "CoreML-LLM docs/QWEN35_FULL_VOCAB_REP_PENALTY.md:34-44",
            "2026-04-25",
            Trust.MEASURED,
            device="iPhone 17 Pro",
            figure="49 tok/s",
        ),
    )
    remedy = "Write `head(logits)` if greedy text loops on a device, and choose on the host."
    bad = """
topology ties_in_the_graph {
  model "gemma3.json"
  target ane ios18 a17
  context 2048
  chunk chunk1 = L0-8
  chunk chunk2 = L9-17 + norm + head(argmax)
}
"""
    good = """
topology ties_on_the_host {
  model "gemma3.json"
  target ane ios18 a17
  context 2048
  chunk chunk1 = L0-8
  chunk chunk2 = L9-17 + norm + head(logits)
}
"""

    def _check(self, subject: Subject) -> Iterator[Finding]:
        classes = subject.topology.layers.vocabulary
        severity = subject.profile.limit("classes of an argmax").rank(classes)
        for chunk, part, head in subject.heads():
            if head.mode == "argmax" and severity is not None:
                message = f"an argmax over {classes:,} classes meets ties in fp16"
                words = "a phone was seen to break them unlike a Mac"
                help_ = "if greedy text loops, write `head(logits)` and choose on the host"
                span = part.span or subject.whole
                yield self.flag(span, message, words, chunk=chunk.name, help=help_)
