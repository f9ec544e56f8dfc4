"""A cache that lives in a state."""

from collections.abc import Iterator

from topoc.dsl.diagnostic import Label
from topoc.dsl.lint.rule import Evidence, Finding, Rule, Trust
from topoc.dsl.lint.subject import Subject
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
            "blended states compile and fail to load, error -14, on Mac and iPhone 17 Pro",
            "CoreML-LLM docs/EXPERIMENTS.md:123-138",
            "2026-04-13",
            Trust.MEASURED,
        ),
        Evidence(
            "slice updates of one position run with coremltools 9",
            "CoreML-LLM docs/SESSION_2026_04_26 (stateful plan, phase 2A):28-36",
            "2026-04-26",
            Trust.CONTESTED,
        ),
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
