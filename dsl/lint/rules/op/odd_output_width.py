"""An output whose last axis is no multiple of 32."""

from collections.abc import Iterator

from topoc.dsl.diagnostic import Severity
from topoc.dsl.lint.rule import Evidence, Finding, Rule, Trust
from topoc.dsl.lint.subject import Mil, Subject

MULTIPLE = 32


class OddOutputWidth(Rule):
    """An fp16 output with an odd last axis is read by its strides.

    The engine pads rows to what suits it. A host that trusts the shape alone reads padding; strides
    that were all zero were reported too. topoc's manifest carries the shape, and its hosts copy.
    """

    severity = Severity.NOTE
    placement = True
    evidence = (
        Evidence(
            "an fp16 output whose last axis is no multiple of 32 holds random data",
            "apple/coremltools#1893",
            "2023-06-28",
            Trust.CONTESTED,
        ),
        Evidence(
            "an output reports strides of zero, and the host reads token 0 for ever",
            "CoreML-LLM docs/QWEN35_LESSONS.md:169-172",
            "2026-04-28",
            Trust.CONTESTED,
            toolchain="coremltools 9.0, iOS 26",
            device="iPhone 17 Pro",
        ),
    )
    remedy = "Read the output by its strides, or copy it into a dense array first."
    bad = """
topology odd_logits {
  model "narrow.json"
  target ane ios18 a17
  context 2048
  chunk chunk1 = L0-1 + norm + head(logits)
}
"""
    good = """
topology even_logits {
  model "gemma3.json"
  target ane ios18 a17
  context 2048
  chunk chunk1 = L0-8
  chunk chunk2 = L9-17 + norm + head(logits)
}
"""
    bad_mil = """
main(x: fp16[1,64]) {
  logits: fp16[1,97] = linear(x=x, weight=fp16[97,64])
  return logits
}
"""
    good_mil = """
main(x: fp16[1,64]) {
  logits: fp16[1,96] = linear(x=x, weight=fp16[96,64])
  return logits
}
"""

    def _check(self, subject: Subject) -> Iterator[Finding]:
        classes = subject.topology.layers.vocabulary
        for chunk, part, head in subject.heads():
            if head.mode == "logits" and classes % MULTIPLE:
                message = f"`{chunk.name}` gives {classes} logits, no multiple of {MULTIPLE}"
                words = "a device may pad them"
                help_ = "let the host read by strides, or copy into a dense array first"
                span = part.span or subject.whole
                yield self.flag(span, message, words, chunk=chunk.name, help=help_)

    def _check_mil(self, subject: Mil) -> Iterator[Finding]:
        from topoc.dsl.lint.at_ops import at_function

        for function in subject.package.functions:
            for name in dict.fromkeys(function.outputs):
                kind = function.type_of(name)
                width = kind.shape[-1] if kind.shape else 1
                # A last axis of 1 is how channels come first, which every layer's output does.
                if kind.dtype == "fp16" and width > 1 and width % MULTIPLE:
                    message = f"output `{name}` is {width} wide, no multiple of {MULTIPLE}"
                    way = "let the host read by strides, or copy into a dense array first"
                    yield at_function(self, subject, function, message, part=name, help=way)
