"""A donor whose cache is shorter than what its reader sees."""

from collections.abc import Iterator

from topoc.dsl.lint.gather import by_rule
from topoc.dsl.lint.rule import Evidence, Finding, Rule, Trust
from topoc.dsl.lint.subject import Subject
from topoc.dsl.resolve.selector import listed


class DonorForgets(Rule):
    """A donor keeps every position that its readers see.

    A ring of 512 slots holds the last 512 positions. A reader with a longer view would attend to
    rows that were overwritten, and nothing at run time would notice.
    """

    coherence = True
    evidence = (
        Evidence(
            "a converter gives sliding readers the sliding producer, full ones the full one",
            "CoreML-LLM conversion/models/gemma4_swa_chunks.py:122-129",
            "2026-05",
            Trust.REPORTED,
        ),
    )
    bad = """
topology reader_sees_more {
  model "gemma4.json"
  target ane ios18 a19
  context 2048
  attention { L15-34 sliding: sliding(window = 1024) }
  chunk chunk1 = ple + L0-14
  chunk chunk2 = L15-34 + norm + head(argmax)
}
"""
    good = """
topology reader_sees_as_much {
  model "gemma4.json"
  target ane ios18 a19
  context 2048
  attention { sliding: sliding(window = 1024) }
  chunk chunk1 = ple + L0-14
  chunk chunk2 = L15-34 + norm + head(argmax)
}
"""

    def _check(self, subject: Subject) -> Iterator[Finding]:
        context, blocks = subject.topology.context, subject.topology.blocks
        faulty = (
            (block, donor)
            for block, donor in subject.sharers
            if blocks[donor].kv.donor is None
            and blocks[donor].kv.slots < (block.attention.window or context)
        )
        for span, donor, layers in by_rule(subject, faulty):
            seen = max(blocks[at].attention.window or context for at in layers)
            slots = blocks[donor].kv.slots
            verb = "sees" if len(layers) == 1 else "see"
            message = f"{listed(layers)} {verb} {seen} positions and L{donor} keeps {slots}"
            help_ = f"give L{donor} more slots, or the readers a window of {slots}"
            yield self.flag(span, message, help=help_)
