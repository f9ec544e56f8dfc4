"""A part of a state that leaves its chunk."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from topoc.dsl.diagnostic import Severity
from topoc.dsl.lint.rule import Evidence, Finding, Rule, Trust
from topoc.dsl.lint.subject import Mil, Subject
from topoc.dsl.model import Block
from topoc.dsl.resolve.selector import listed

if TYPE_CHECKING:
    from topoc.dsl.lint.mil import Function, Operand, Value


class ExportedView(Rule):
    """A chunk does not hand out what it keeps in a state.

    Where layers of a later chunk read a donor's KV, the donor's chunk gives it as an output. If
    that output is a view of a state, the compiler of a phone may crash: it did for a model of two
    KV heads, and copying the value first did not help. A model of one KV head went through.
    """

    placement = True
    evidence = (
        Evidence(
            "a view of a state with two KV heads as an output crashes the compiler on a phone",
            "CoreML-LLM docs/E4B_MULTIMODAL_BUILD.md:35-37",
            "2026-05-06",
            Trust.MEASURED,
            toolchain="coremltools 9.0, iOS 26",
            device="iPhone 17 Pro, Gemma 4 E4B; a Mac took it",
            figure="std::bad_cast in ANECCompile(), with clones and with four chunks too",
        ),
        Evidence(
            "the same pattern with one KV head loads",
            "CoreML-LLM Sources/CoreMLLLM/Gemma4StatefulMultimodalEngine.swift:294-300",
            "2026-05-06",
            Trust.MEASURED,
            toolchain="coremltools 9.0, iOS 26",
            device="iPhone 17 Pro, Gemma 4 E2B",
        ),
        Evidence(
            "a package whose output is also the value written to a state crashes while it loads",
            "apple/coremltools#2713",
            "2026-05-22",
            Trust.REPORTED,
            toolchain="coremltools 9.0",
            device="Mac",
        ),
    )
    remedy = "Keep the donor's cache `store io`, or run donor and readers in one chunk."
    error_texts = ("std::bad_cast",)
    bad = """
topology donor_in_a_state {
  model "gemma4-e4b.json"
  target ane ios18 a19
  context 2048
  kv { all: store state(kv) }
  chunk chunk1 = ple + L0-7
  chunk chunk2 = L8-23
  chunk chunk3 = L24-41 + norm + head(argmax)
  allow state.update because "an example"
}
"""
    good = """
topology donor_as_an_output {
  model "gemma4-e4b.json"
  target ane ios18 a19
  context 2048
  kv { L0-21: store state(kv) }
  chunk chunk1 = ple + L0-7
  chunk chunk2 = L8-23
  chunk chunk3 = L24-41 + norm + head(argmax)
  allow state.update because "an example"
}
"""
    bad_mil = """
main(row: fp16[1,2,1,64], at: int32[4], kv: state fp16[1,2,512,64]) {
  old: fp16[1,2,512,64] = read_state(input=kv)
  new: fp16[1,2,512,64] = slice_update(x=old, update=row, begin=at, end=at)
  write_state(input=kv, data=new)
  now: fp16[1,2,512,64] = read_state(input=kv)
  k: fp16[1,1,512,64] = slice_by_size(x=now, begin=[0, 0, 0, 0], size=[1, 1, 512, 64])
  return k
}
"""
    good_mil = """
main(row: fp16[1,2,1,64], at: int32[4], kv: state fp16[1,2,512,64]) {
  old: fp16[1,2,512,64] = read_state(input=kv)
  new: fp16[1,2,512,64] = slice_update(x=old, update=row, begin=at, end=at)
  write_state(input=kv, data=new)
  half: fp16[1,2,1,64] = mul(x=row, y=0.5)
  return half
}
"""

    def _check(self, subject: Subject) -> Iterator[Finding]:
        for chunk, _ in subject.placed():
            inside = set(chunk.layers)
            read = {donor for one, donor in subject.sharers if one.index not in inside}
            lent = [one for one in subject.held(chunk) if one.index in read]
            if lent:
                yield self._lent(subject, lent, chunk.name)

    def _lent(self, subject: Subject, lent: list[Block], chunk: str) -> Finding:
        heads = max(subject.layer(one.index).kv_heads for one in lent)
        crashes = heads > 1 and subject.profile.phone
        donors = listed([one.index for one in lent])
        message = f"`{chunk}` hands out parts of its states, the KV of {donors}"
        words = "a phone's compiler crashed on this" if crashes else "this ran with one KV head"
        help_ = f"write `{donors}: store io`, or put the readers into the same chunk"
        return self.flag(
            subject.at(lent[0], "store"),
            message,
            words if heads == 1 or crashes else "a Mac took this, a phone did not",
            chunk=chunk,
            severity=Severity.ERROR if crashes else Severity.WARNING,
            help=help_,
        )

    def _check_mil(self, subject: Mil) -> Iterator[Finding]:
        from topoc.dsl.lint.at_ops import at_function
        from topoc.dsl.lint.trace import origin

        for function in subject.package.functions:
            held = _held(function)
            given = [name for name in function.outputs if origin(function, name) in held]
            if given:
                heads = max(_heads(held[origin(function, one)]) for one in given)
                crashes = heads > 1 and subject.profile.phone
                message = f"output `{given[0]}` is a view of a state"
                way = "let an op compute it, or pass the cache in and out"
                severity = Severity.ERROR if crashes else Severity.WARNING
                part = given[0]
                yield at_function(
                    self, subject, function, message, part=part, help=way, severity=severity
                )


def _held(function: "Function") -> "dict[Operand | None, Value]":
    """The values that are what a state holds, read from it or written to it, and the state."""
    from topoc.dsl.lint.mil import Operand
    from topoc.dsl.lint.trace import READS, WRITES, origin, written

    held: list[tuple[Operand, Operand | None]] = [
        (one.result, one.operand("input")) for one in function.of(*READS)
    ]
    for write in function.of(*WRITES):
        state, value = written(write)
        held += [(one, state) for one in (origin(function, value), write.result) if one]
    states = {one.name: one for one in function.states}
    return {value: states[name] for value, name in held if isinstance(name, str) and name in states}


def _heads(state: "Value") -> int:
    """The KV heads of a state of layers or batches, heads, slots and width."""
    return state.type.shape[1] if state.type.rank == 4 else 1
