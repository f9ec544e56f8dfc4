"""More layers in a chunk than the compiler on the device takes."""

from collections.abc import Iterator

from topoc.dsl.diagnostic import Severity
from topoc.dsl.lint.rule import Evidence, Finding, Rule, Trust
from topoc.dsl.lint.subject import Subject
from topoc.dsl.model import Chunk


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
            toolchain="coremltools 9.0, iOS 26",
            device="iPhone 17 Pro",
            figure="about 1.1 GB with palettes of 4 bits",
        ),
        Evidence(
            "the same 35 layers with states run on a Mac and crash a phone's compiler",
            "CoreML-LLM docs/SESSION_2026_04_26_STAGE3_PREFILL_BN.md:25-35",
            "2026-04-26",
            Trust.MEASURED,
            toolchain="coremltools 9.0",
            device="Mac Studio; iPhone 17 Pro",
            figure="30.8 tok/s on the Mac",
        ),
        Evidence(
            "a chunk of 20 layers compiles and runs on a phone",
            "CoreML-LLM docs/CHUNK_CONSOLIDATION_BENCH.md:197-215",
            "2026-04-17",
            Trust.MEASURED,
            toolchain="coremltools 9.0, iOS 26",
            device="iPhone 17 Pro",
            figure="30.9 ms a step",
        ),
        Evidence(
            "a chunk of 21 layers of width 2560 runs on a phone",
            "CoreML-LLM docs/E4B_MULTIMODAL_BUILD.md:13-37",
            "2026-05-06",
            Trust.MEASURED,
            toolchain="coremltools 9.0, iOS 26",
            device="iPhone 17 Pro",
            figure="15.7 tok/s",
        ),
        Evidence(
            "planning hangs above 15 layers on an older system",
            "CoreML-LLM models/gemma4_stateless_chunks.py:5",
            "2026-04",
            Trust.REPORTED,
        ),
    )
    remedy = "Cut the chunk in two; each keeps 20 layers or fewer."
    error_texts = (
        "ANE model load has failed for on-device compiled macho. Must re-compile the E5 bundle.",
        "No space left on device",
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
        limit = subject.profile.limit("layers per chunk")
        for chunk, _ in subject.placed():
            severity = limit.rank(len(chunk.layers))
            if severity is not None:
                yield self._count(subject, chunk, severity)

    def _count(self, subject: Subject, chunk: Chunk, severity: Severity) -> Finding:
        limit = subject.profile.limit("layers per chunk")
        older = f"chunks from {limit.note} layers hung on older systems"
        seen = {
            Severity.NOTE: older
            if subject.profile.phone
            else "no Mac was seen to run more than 35",
            Severity.WARNING: "21 is the most that was seen to run on a phone",
            Severity.ERROR: f"{limit.error} layers in one program did not load",
        }[severity]
        return self.flag(
            chunk.span or subject.whole,
            f"`{chunk.name}` holds {len(chunk.layers)} layers; {seen}",
            chunk=chunk.name,
            severity=severity,
            help="split the chunk, or allow this with the reason why it fits",
        )
