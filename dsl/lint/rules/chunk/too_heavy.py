"""A chunk whose weights, expanded to fp16, may be too much for the Neural Engine."""

from collections.abc import Iterator

from topoc.dsl.diagnostic import Place, Severity
from topoc.dsl.lint.rule import Evidence, Finding, Rule, Trust
from topoc.dsl.lint.subject import Mil, Subject
from topoc.dsl.measure import fp16_bytes


class TooHeavy(Rule):
    """What counts is the weights as they are loaded, two bytes each, not what is on disk.

    Three models with more than 1.4 to 1.9 GB of expanded weights in a package were moved to the GPU
    as a whole and in silence. Chunks of Gemma 4 with palettes of four bits and 1.8 to 3.9 GB ran
    where they should. Nobody knows what tells the two apart, so that this is a warning at most.
    """

    severity = Severity.WARNING
    placement = True
    evidence = (
        Evidence(
            "2B in one package of 3.8 GB and in two of 2 GB goes to the GPU, in four of 1.8 GB not",
            "CoreML-LLM docs/QWEN35_2B_CHUNKED_HANDOFF.md:16-28",
            "2026-04-28",
            Trust.CONTESTED,
            toolchain="coremltools 9.0, iOS 26",
            device="iPhone 17 Pro",
            figure="0 % on the Neural Engine",
        ),
        Evidence(
            "1.94 GB in one package goes to the GPU on a Mac",
            "CoreML-LLM docs/DECODE_STATE_LAYOUTS.md:45-55",
            "2026-04-28",
            Trust.CONTESTED,
            toolchain="coremltools 9.0",
            device="Mac, Bonsai 1.7B",
            figure="8.3 tok/s; 24 in two chunks",
        ),
        Evidence(
            "chunks of Gemma 4 E4B of up to 3.9 GB run on the Neural Engine",
            "CoreML-LLM docs/E4B_MULTIMODAL_BUILD.md:13-37",
            "2026-05-06",
            Trust.CONTESTED,
            toolchain="coremltools 9.0, iOS 26",
            device="iPhone 17 Pro",
            figure="15.7 tok/s",
        ),
    )
    remedy = "Cut the chunk in two, and look at the memory that the process takes on a device."
    bad = """
topology heavy {
  model "gemma4-e4b.json"
  target ane ios18 a19
  context 2048
  chunk chunk1 = ple + L0-11
  chunk chunk2 = L12-41 + norm + head(argmax)
  allow chunk.too-many-layers because "an example"
}
"""
    good = """
topology light {
  model "gemma3.json"
  target ane ios18 a17
  context 2048
  chunk chunk1 = L0-8
  chunk chunk2 = L9-17 + norm + head(argmax)
}
"""
    bad_mil = """
main(x: fp16[1,32000]) {
  up: fp16[1,32000] = linear(x=x, weight=uint4[32000,32000])
  w: fp16[40000,60000] = constexpr_lut_to_dense(indices=uint4[40000,60000], lut=fp16[1,1,16,1])
  y: fp16[1,40000] = linear(x=up, weight=w)
  return y
}
"""
    good_mil = """
main(x: fp16[1,640]) {
  w: fp16[640,640] = constexpr_lut_to_dense(indices=uint4[640,640], lut=fp16[1,1,16,1])
  y: fp16[1,640] = linear(x=x, weight=w)
  return y
}
"""

    def _check(self, subject: Subject) -> Iterator[Finding]:
        limit = subject.profile.limit("fp16 per chunk")
        for chunk, _ in subject.placed():
            size = fp16_bytes(subject.topology, chunk)
            severity = limit.rank(size)
            if severity is None:
                continue
            message = f"`{chunk.name}` loads {size / 1e9:.1f} GB of weights in fp16"
            words = "models of 1.4 to 2 GB a package went to the GPU, one of 3.9 GB did not"
            help_ = "split the chunk, or look on a device where it runs"
            span = chunk.span or subject.whole
            yield self.flag(span, message, words, chunk=chunk.name, severity=severity, help=help_)

    def _check_mil(self, subject: Mil) -> Iterator[Finding]:
        from topoc.dsl.lint.weights import expanded_bytes

        size = expanded_bytes(subject.package)
        severity = subject.profile.limit("fp16 per chunk").rank(size)
        if severity is not None:
            message = f"the package loads {size / 1e9:.1f} GB of weights in fp16"
            words = "models of 1.4 to 2 GB a package went to the GPU, one of 3.9 GB did not"
            way = "split the package, or look on a device where it runs"
            place = Place(subject.package.path)
            chunk = subject.chunk
            yield self.flag(place, message, words, chunk=chunk, severity=severity, help=way)
