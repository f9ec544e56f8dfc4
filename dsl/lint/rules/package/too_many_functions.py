"""More programs than stay resident without slowing each other down."""

from collections.abc import Iterator

from topoc.dsl.lint.rule import Evidence, Finding, Rule, Trust
from topoc.dsl.lint.subject import Subject


class TooManyFunctions(Rule):
    """Each function of each package is a program that the device holds.

    Four sizes of prefill over four chunks made the one size that was used twice as slow, without
    ever being called; only loading them did it. A process that compiled more than about a hundred
    programs was refused further ones.
    """

    placement = True
    evidence = (
        Evidence(
            "four variants of four chunks resident: a prefill of 348 tokens takes twice as long",
            "CoreML-LLM docs/IPHONE_ANE_SPARSITY_FINDING.md:49-58",
            "2026-04-23",
            Trust.MEASURED,
            toolchain="coremltools 9.0, iOS 26",
            device="iPhone 17 Pro",
            figure="560 to 1,250 ms",
        ),
        Evidence(
            "a process compiles about a hundred programs, and no more",
            "CoreML-LLM docs/ANE_PRIVATE_API_CONSTRAINTS.md:45-52",
            "2026-04",
            Trust.REPORTED,
            device="Mac M4",
            figure="119 programs",
        ),
    )
    remedy = "Offer one size of prefill, or load the packages of a function only while it runs."
    bad = """
topology many_sizes {
  model "gemma4.json"
  target ane ios18 a19
  context 2048
  chunk chunk1 = ple + L0-7
  chunk chunk2 = L8-14
  chunk chunk3 = L15-24
  chunk chunk4 = L25-34 + norm + head(argmax)
  functions decode, prefill(tokens = 64), prefill(tokens = 128), prefill(tokens = 256)
}
"""
    good = """
topology one_size {
  model "gemma4.json"
  target ane ios18 a19
  context 2048
  chunk chunk1 = ple + L0-7
  chunk chunk2 = L8-14
  chunk chunk3 = L15-24
  chunk chunk4 = L25-34 + norm + head(argmax)
  functions decode, prefill(tokens = 256)
}
"""

    def _check(self, subject: Subject) -> Iterator[Finding]:
        placed = list(subject.placed())
        programs = sum(len(functions) for _, functions in placed)
        severity = subject.profile.limit("resident programs").rank(programs)
        if severity is not None:
            functions = list(dict.fromkeys(one for _, offered in placed for one in offered))
            message = f"{programs} programs are resident: {len(functions)} functions of the chunks"
            words = "16 made the one in use twice as slow"
            help_ = "offer fewer sizes; one prefill takes shorter prompts as well"
            at = functions[-1].span or subject.whole
            yield self.flag(at, message, words, severity=severity, help=help_)
