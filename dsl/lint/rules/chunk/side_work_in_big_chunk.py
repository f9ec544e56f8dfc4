"""The projection of per-layer embeddings beside many layers."""

from collections.abc import Iterator

from topoc.dsl.diagnostic import Severity
from topoc.dsl.lint.rule import Evidence, Finding, Rule, Trust
from topoc.dsl.lint.subject import Subject


class SideWorkInBigChunk(Rule):
    """A large side computation belongs into a small chunk.

    With the projection of the per-layer embeddings and 15 layers in one chunk each layer took a
    tenth longer than in a chunk of layers alone. In the first chunk of eight layers it cost
    nothing that could be seen.
    """

    severity = Severity.WARNING
    placement = True
    evidence = (
        Evidence(
            "15 layers with the projection take 0.80 to 0.82 ms a layer, 17 without it 0.72",
            "CoreML-LLM docs/TOPOLOGY_I_IPHONE_BENCH.md:20-50",
            "2026-04-24",
            Trust.MEASURED,
            toolchain="coremltools 9.0, iOS 26",
            device="iPhone 17 Pro and Mac",
            figure="31.7 against 34.2 tok/s",
        ),
    )
    remedy = "Keep `ple` in a first chunk of eight layers or fewer."
    bad = """
topology side_work {
  model "gemma4.json"
  target ane ios18 a19
  context 2048
  chunk chunk1 = ple + L0-14
  chunk chunk2 = L15-24
  chunk chunk3 = L25-34 + norm + head(argmax)
}
"""
    good = """
topology side_work_apart {
  model "gemma4.json"
  target ane ios18 a19
  context 2048
  chunk chunk1 = ple + L0-7
  chunk chunk2 = L8-24
  chunk chunk3 = L25-34 + norm + head(argmax)
}
"""

    def _check(self, subject: Subject) -> Iterator[Finding]:
        limit = subject.profile.limit("layers beside side work")
        for chunk, _ in subject.placed():
            severity = limit.rank(len(chunk.layers)) if chunk.has("ple") else None
            if severity is None:
                continue
            span = next(part.span for part in chunk.parts if part.kind == "ple")
            message = f"`{chunk.name}` runs `ple` beside {len(chunk.layers)} layers"
            words = "15 layers lost a tenth of their speed, 8 lost nothing"
            help_ = "keep `ple` in a chunk of eight layers or fewer"
            at = span or subject.whole
            yield self.flag(at, message, words, chunk=chunk.name, severity=severity, help=help_)
