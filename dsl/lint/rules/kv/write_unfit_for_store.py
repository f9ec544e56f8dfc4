"""A write that the store can not take."""

from collections.abc import Iterator

from topoc.dsl.diagnostic import Label
from topoc.dsl.lint.gather import by_rule
from topoc.dsl.lint.rule import Evidence, Finding, Rule, Trust
from topoc.dsl.lint.subject import Subject
from topoc.dsl.model import Store, Write
from topoc.dsl.resolve.selector import listed


class WriteUnfitForStore(Rule):
    """Each store takes three of the four writes.

    `append` hands rows to the host, which has no place inside a state. `slice` updates a state in
    place, and a tensor that comes in as an input has no place to update.
    """

    coherence = True
    evidence = (
        Evidence(
            "a program that gives a state of eight slots nine is refused while it is built",
            "coremltools, converters/mil/mil/ops/defs/coreml_dialect/ops.py:65",
            "2026-11-30",
            Trust.MEASURED,
            toolchain="coremltools 9.0",
            device="Linux",
            figure="State wrapped type not matched with the value's type",
        ),
    )
    bad = """
topology append_to_a_state {
  model "gemma3.json"
  target ane ios18 a17
  context 2048
  kv { all: store state, write append }
  chunk chunk1 = L0-8
  chunk chunk2 = L9-17 + norm + head(argmax)
  allow state.update because "an example"
}
"""
    good = """
topology slice_a_state {
  model "gemma3.json"
  target ane ios18 a17
  context 2048
  kv { all: store state, write slice }
  chunk chunk1 = L0-8
  chunk chunk2 = L9-17 + norm + head(argmax)
  allow state.update because "an example"
}
"""

    def _check(self, subject: Subject) -> Iterator[Finding]:
        faulty = (
            (block, -1)
            for block in subject.owners
            if block.kv.write is {Store.IO: Write.SLICE, Store.STATE: Write.APPEND}[block.kv.store]
        )
        for span, _, layers in by_rule(subject, faulty, clause="write"):
            kv = subject.topology.blocks[layers[0]].kv
            what = "a state" if kv.store is Store.STATE else "`store io`"
            message = f"{what} does not take `write {kv.write.value}` ({listed(layers)})"
            fit = "slice" if kv.store is Store.STATE else "append"
            related = tuple(
                Label(at, "the store is chosen here") for at in (kv.at("store"),) if at is not None
            )
            yield self.flag(span, message, help=f"write `all: write {fit}`", related=related)
