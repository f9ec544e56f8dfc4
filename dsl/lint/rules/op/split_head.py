"""A head that is cut over its classes."""

from collections.abc import Iterator

from topoc.dsl.diagnostic import Severity
from topoc.dsl.lint.rule import Evidence, Finding, Rule, Trust
from topoc.dsl.lint.subject import Subject

WIDE = 131_072  # classes; the claim for the split comes from vocabularies below this


class SplitHead(Rule):
    """One convolution over all classes is not slower than sixteen over a part each.

    Others split the head of a vocabulary of 128,000 and gained. Over 262,144 classes the sixteen
    parts were slower on the phone, token for token the same.
    """

    severity = Severity.NOTE
    placement = True
    evidence = (
        Evidence(
            "a head of 16 parts over 262,144 classes: the last chunk 9.3 % slower",
            "CoreML-LLM docs/SESSION_2026_04_28_LMSPLIT_FINALISE.md:18-57",
            "2026-04-28",
            Trust.MEASURED,
            toolchain="coremltools 9.0, iOS 26",
            device="iPhone 17 Pro, Gemma 4 E2B",
            figure="-4.6 % tok/s, 34.6 to 33.0",
        ),
    )
    remedy = "Leave out `split` above 128,000 classes."
    bad = """
topology split_sixteen_ways {
  model "gemma4.json"
  target ane ios18 a19
  context 2048
  chunk chunk1 = ple + L0-7
  chunk chunk2 = L8-24
  chunk chunk3 = L25-34 + norm + head(argmax, split = 16)
}
"""
    good = """
topology in_one_piece {
  model "gemma4.json"
  target ane ios18 a19
  context 2048
  chunk chunk1 = ple + L0-7
  chunk chunk2 = L8-24
  chunk chunk3 = L25-34 + norm + head(argmax)
}
"""

    def _check(self, subject: Subject) -> Iterator[Finding]:
        classes = subject.topology.layers.vocabulary
        for chunk, part, head in subject.heads():
            if head.split > 1 and classes >= WIDE:
                message = f"`{chunk.name}` cuts a head of {classes:,} classes in {head.split}"
                words = "16 parts cost 4.6 % of the speed"
                help_ = "leave out `split`"
                span = part.span or subject.whole
                yield self.flag(span, message, words, chunk=chunk.name, help=help_)
