"""A big embedding table in one package with decoder layers."""

from collections.abc import Iterator

from topoc.dsl.lint.rule import Evidence, Finding, Rule, Trust
from topoc.dsl.lint.subject import Subject
from topoc.dsl.measure import fp16_bytes


class EmbeddingWithBody(Rule):
    """A big table of embeddings stays out of the chunks that compute.

    A package with the table and some layers, 1.8 GB in fp16, crashed the compiler's helper on a
    phone; with 0.6 GB it compiled. The host can look rows up in a mapped file at no cost.
    """

    placement = True
    evidence = (
        Evidence(
            "a chunk of 1.8 GB with embedding and layers crashes the compiler's helper",
            "CoreML-LLM Sources/CoreMLLLM/Qwen35Generator.swift:209-212",
            "2026-04-28",
            Trust.MEASURED,
            toolchain="coremltools 9.0, iOS 26",
            device="iPhone 17 Pro, Qwen3.5 2B; one model",
            figure="crash at 1.8 GB, none at 0.6 GB",
        ),
        Evidence(
            "with the table in a mapped file the process takes a fraction of the memory",
            "CoreML-LLM docs/RELEASE_v1_1_0.md:19-22",
            "2026-04-28",
            Trust.MEASURED,
            device="iPhone 17 Pro, Qwen3.5 2B",
            figure="about 200 MB",
        ),
    )
    remedy = "Leave out the part `embed`: the host then looks rows up in a mapped table."
    error_texts = ("MILCompilerForANE",)
    bad = """
topology table_with_layers {
  model "gemma4.json"
  target ane ios18 a19
  context 2048
  chunk chunk1 = embed + ple + L0-14
  chunk chunk2 = L15-34 + norm + head(argmax)
}
"""
    good = """
topology table_on_the_host {
  model "gemma4.json"
  target ane ios18 a19
  context 2048
  chunk chunk1 = ple + L0-14
  chunk chunk2 = L15-34 + norm + head(argmax)
}
"""

    def _check(self, subject: Subject) -> Iterator[Finding]:
        limit = subject.profile.limit("fp16 with a table")
        for chunk, _ in subject.placed():
            if not (chunk.has("embed") and chunk.layers):
                continue
            size = fp16_bytes(subject.topology, chunk)
            severity = limit.rank(size)
            if severity is not None:
                span = next(part.span for part in chunk.parts if part.kind == "embed")
                message = f"`{chunk.name}` holds the embedding and layers, {size / 1e9:.1f} GB"
                help_ = "leave out `embed`, and the host looks the rows up"
                words = "a phone's compiler crashed at 1.8 GB"
                yield self.flag(
                    span or subject.whole,
                    message,
                    words,
                    chunk=chunk.name,
                    severity=severity,
                    help=help_,
                )
