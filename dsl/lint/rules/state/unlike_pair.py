"""Two states of different shapes in one program."""

from collections.abc import Iterator

from topoc.dsl.diagnostic import Severity
from topoc.dsl.lint.rule import Evidence, Finding, Rule, Trust
from topoc.dsl.lint.subject import Mil, Subject
from topoc.dsl.measure import states
from topoc.dsl.model import Chunk
from topoc.dsl.suggest import quoted


class UnlikePair(Rule):
    """Two states in one program are safe only as far as someone has run them.

    A KV cache beside the window of a convolution failed in every variant that was tried. Two KV
    caches of one rank, a short one and a long one, run in an application. Which difference matters
    is not known, so that a pair of unlike shapes is worth one trip to a device.
    """

    severity = Severity.WARNING
    placement = True
    evidence = (
        Evidence(
            "a KV state of rank 4 beside a convolution state of rank 3 compiles, and then fails",
            "CoreML-LLM docs/LFM2_CONVERSION_FINDINGS.md:61-90",
            "2026-04-28",
            Trust.CONTESTED,
            toolchain="coremltools 9.0, macOS 26.0.1",
            device="Mac",
            figure="status=0x1d in 9 variants",
        ),
        Evidence(
            "two KV states of Gemma 4, one as long as the window and one as the context, run",
            "CoreML-LLM docs/SESSION_2026_04_26_STATEFUL_PLAN3_PHASE2A.md:28-36",
            "2026-04-26",
            Trust.CONTESTED,
            toolchain="coremltools 9.0, iOS 26",
            device="iPhone 17 Pro",
            figure="40.0 tok/s at a context of 512",
        ),
    )
    remedy = "Give both caches one state, or keep the smaller one `store io`."
    error_texts = ("statusType=0x9: Program Inference error",)
    bad = """
topology short_and_long {
  model "gemma3.json"
  target ane ios18 a17
  context 2048
  kv { all: store state }
  chunk chunk1 = L0-8
  chunk chunk2 = L9-17 + norm + head(argmax)
  allow state.update because "an example"
}
"""
    good = """
topology unified {
  model "gemma3.json"
  target ane ios18 a17
  context 2048
  kv { all: store state(kv_cache_unified) }
  chunk chunk1 = L0-8
  chunk chunk2 = L9-17 + norm + head(argmax)
  allow state.update because "an example"
}
"""
    bad_mil = """
main(x: fp16[1,64], kv: state fp16[2,1,512,64], window: state fp16[1,64,3]) {
  y: fp16[1,64] = exp(x=x)
  return y
}
"""
    good_mil = """
main(x: fp16[1,64], k: state fp16[2,1,512,64], v: state fp16[2,1,512,64]) {
  y: fp16[1,64] = exp(x=x)
  return y
}
"""

    def _check(self, subject: Subject) -> Iterator[Finding]:
        for chunk, _ in subject.placed():
            names = states(subject.topology, chunk)
            shapes = {_shape(subject, chunk, name) for name in names}
            if len(names) == 2 and len(shapes) == 2:
                (a, b) = (f"{slots} slots of {width}" for slots, _, width in sorted(shapes))
                message = f"`{chunk.name}` keeps two unlike states: {a}, and {b}"
                help_ = "`all: store state(NAME)` makes one of them; or allow this, once it ran"
                span = chunk.span or subject.whole
                words = quoted(names, "and")
                yield self.flag(span, message, words, chunk=chunk.name, help=help_)

    def _check_mil(self, subject: Mil) -> Iterator[Finding]:
        from topoc.dsl.lint.at_ops import at_function

        for function in subject.package.functions:
            shapes = [one.type.shape for one in function.states]
            if len(shapes) == 2 and shapes[0][1:] != shapes[1][1:]:
                a, b = (one.type for one in function.states)
                message = f"`{function.name}` keeps two unlike states, {a} and {b}"
                way = "pass the smaller one in and out, or try the package on a device"
                yield at_function(self, subject, function, message, help=way)


def _shape(subject: Subject, chunk: Chunk, name: str) -> tuple[int, int, int]:
    """Slots, KV heads and head width of a state: those of its largest layer."""
    held = [one for one in subject.held(chunk) if one.kv.state == name]
    layers = [subject.layer(one.index) for one in held]
    widest = max(one.head_dim for one in subject.topology.layers.layers)
    padded = any(one.kv.padded for one in held)
    return (
        max(one.kv.slots for one in held),
        max(one.kv_heads for one in layers),
        widest if padded else max(one.head_dim for one in layers),
    )
