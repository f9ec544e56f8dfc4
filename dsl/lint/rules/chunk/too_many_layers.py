"""More layers in a chunk than the compiler on the device takes."""

from collections.abc import Iterator

from topoc.dsl.diagnostic import Severity
from topoc.dsl.lint.rule import Evidence, Finding, Rule, Trust
from topoc.dsl.lint.subject import Subject
from topoc.dsl.model import Chunk
from topoc.dsl.source import Span
from topoc.dsl.targets.limits import LAYERS_PER_CHUNK


class TooManyLayers(Rule):
    """A chunk holds no more layers than its compiler takes.

    What limits a chunk is not the layers as such: it is the number of operations and the size of
    the expanded weights. Layers are what a topology can count. One program of 35 layers of Gemma 4
    E2B did not load on a phone, while chunks of 20 and 21 layers ran; an older system was seen to
    hang above 15.
    """

    placement = True
    evidence = (
        Evidence(
            "35 layers of Gemma 4 E2B in one program: the phone asks to re-compile the E5 bundle",
            "CoreML-LLM docs/CHUNK_CONSOLIDATION_BENCH.md:188-195",
            "2026-04-17",
            Trust.MEASURED,
        ),
        Evidence(
            "a chunk of 20 layers compiled and ran on an iPhone 17 Pro",
            "CoreML-LLM docs/CHUNK_CONSOLIDATION_BENCH.md:197-215",
            "2026-04-17",
            Trust.MEASURED,
        ),
        Evidence(
            "a chunk of 21 layers of width 2560 ran at 15.7 tok/s",
            "CoreML-LLM docs/E4B_MULTIMODAL_BUILD.md:13-37",
            "2026-05-06",
            Trust.MEASURED,
        ),
        Evidence(
            "planning hangs above 15 layers on an older system",
            "CoreML-LLM models/gemma4_stateless_chunks.py:5",
            "2026-04",
            Trust.CONTESTED,
        ),
    )
    bad = """
topology one_big_chunk {
  model "gemma4.json"
  target ane ios18 a19
  context 2048
  chunk chunk1 = ple + L0-34 + norm + head(argmax)
}
"""
    good = """
topology three_chunks {
  model "gemma4.json"
  target ane ios18 a19
  context 2048
  chunk chunk1 = ple + L0-11
  chunk chunk2 = L12-23
  chunk chunk3 = L24-34 + norm + head(argmax)
}
"""

    def _check(self, subject: Subject) -> Iterator[Finding]:
        for chunk_list in subject.lists():
            for chunk in chunk_list.chunks:
                if subject.on_neural_engine(chunk, chunk_list.functions):
                    yield from self._count(chunk, subject.whole)

    def _count(self, chunk: Chunk, whole: Span) -> Iterator[Finding]:
        count, limit = len(chunk.layers), LAYERS_PER_CHUNK
        if count < limit.note:
            return
        severity, seen = Severity.NOTE, f"chunks from {limit.note} layers hung on older systems"
        if count >= limit.error:
            severity, seen = Severity.ERROR, f"{limit.error} layers in one program did not load"
        elif count >= limit.warning:
            severity, seen = Severity.WARNING, "21 is the most that was seen to run on a phone"
        yield self.flag(
            chunk.span or whole,
            f"`{chunk.name}` holds {count} layers; {seen}",
            chunk=chunk.name,
            severity=severity,
            help="split the chunk, or allow this with the reason why it fits",
        )
