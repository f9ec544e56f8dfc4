"""A cache that lives in a state."""

from collections.abc import Iterator

from topoc.dsl.diagnostic import Label
from topoc.dsl.lint.rule import Evidence, Finding, Rule, Trust
from topoc.dsl.lint.subject import Mil, Subject
from topoc.dsl.model import Block, Chunk, Write
from topoc.dsl.resolve.selector import listed


class Update(Rule):
    """A cache in a state is updated inside the program, and the Neural Engine may refuse that.

    Programs that wrote a state through a blend or a whole-tensor value compiled, and then failed to
    load with error -14. Later programs, which updated one position by a slice under coremltools 9,
    ran. The two were never set side by side on one system, so that a state is an error until its
    author allows it and says why.
    """

    placement = True
    evidence = (
        Evidence(
            "blended states compile, and fail to load on a Mac and on a phone",
            "CoreML-LLM docs/EXPERIMENTS.md:123-138",
            "2026-04-13",
            Trust.MEASURED,
            toolchain="coremltools 9.0, iOS 26",
            device="Mac M4 Max, iPhone 17 Pro",
            figure="error code -14",
        ),
        Evidence(
            "slice updates of one position compile and run in four chunks",
            "CoreML-LLM docs/SESSION_2026_04_26_STATEFUL_PLAN3_PHASE2A.md:28-36",
            "2026-04-26",
            Trust.CONTESTED,
            toolchain="coremltools 9.0, iOS 26",
            device="iPhone 17 Pro",
            figure="40.0 tok/s at a context of 512",
        ),
        Evidence(
            "a published model with states runs on the GPU and does not load for the Neural Engine",
            "huggingface/swift-chat#31",
            "2025-03-07",
            Trust.REPORTED,
            toolchain="macOS 15.1.1",
            device="MacBook Air M3",
            figure="error code 14",
        ),
    )
    remedy = "Keep the caches `store io`, or allow this, `write slice`, and say where it ran."
    error_texts = (
        "Failed to build the model execution plan using a model architecture file",
        "error code: -14",
    )
    bad = """
topology states {
  model "gemma3.json"
  target ane ios18 a17
  context 2048
  kv { all: store state }
  chunk chunk1 = L0-8
  chunk chunk2 = L9-17 + norm + head(argmax)
}
"""
    good = """
topology no_states {
  model "gemma3.json"
  target ane ios18 a17
  context 2048
  kv { all: store io }
  chunk chunk1 = L0-8
  chunk chunk2 = L9-17 + norm + head(argmax)
}
"""
    bad_mil = """
main(row: fp16[1,1,1,64], at: int32[4], kv: state fp16[1,1,512,64]) {
  old: fp16[1,1,512,64] = read_state(input=kv)
  new: fp16[1,1,512,64] = slice_update(x=old, update=row, begin=at, end=at)
  write_state(input=kv, data=new)
  return row
}
"""
    good_mil = """
main(row: fp16[1,1,1,64], at: int32[4], kv: fp16[1,1,512,64]) {
  new: fp16[1,1,512,64] = slice_update(x=kv, update=row, begin=at, end=at)
  return new
}
"""

    def _check(self, subject: Subject) -> Iterator[Finding]:
        for chunk, _ in subject.placed():
            held = subject.held(chunk)
            if held:
                yield self._held(subject, chunk, held)

    def _held(self, subject: Subject, chunk: Chunk, held: tuple[Block, ...]) -> Finding:
        layers = listed([block.index for block in held])
        message = f"`{chunk.name}` updates states, which the Neural Engine was seen to refuse"
        write = held[0].kv.write
        advice = "keep the caches `store io`, or allow this and say why"
        if write is not Write.SLICE:
            advice = f"`write {write.value}` is the form that failed; write `all: write slice`"
        span = subject.at(held[0], "store")
        related = (Label(chunk.span, layers),) if chunk.span else ()
        return self.flag(span, message, "kept here", chunk=chunk.name, help=advice, related=related)

    def _check_mil(self, subject: Mil) -> Iterator[Finding]:
        from topoc.dsl.lint.at_ops import at_ops
        from topoc.dsl.lint.trace import WRITES

        for function in subject.package.functions:
            ops = list(function.of(*WRITES))
            if ops:
                message = f"`{function.name}` updates states, which the Neural Engine may refuse"
                way = "pass the caches in and out, or allow this and say why"
                yield at_ops(self, subject, function, ops, message, help=way)
