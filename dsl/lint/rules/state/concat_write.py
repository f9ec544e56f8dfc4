"""A state that is rolled by concatenation."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from topoc.dsl.lint.rule import Evidence, Finding, Rule, Trust
from topoc.dsl.lint.subject import Mil, Subject
from topoc.dsl.model import Write
from topoc.dsl.resolve.selector import listed

if TYPE_CHECKING:
    from topoc.dsl.lint.mil import Function, Op


class ConcatWrite(Rule):
    """A state is not written by joining its tail with the new row.

    `write shift` drops the oldest row and appends the new one. On a tensor that comes in as an
    input that is well; as the new value of a state it gave a package that the Neural Engine's
    compiler refused, and that could not even be asked why afterwards.
    """

    placement = True
    evidence = (
        Evidence(
            "a state rolled by a concatenation is refused, and its package becomes a CPU stub",
            "CoreML-LLM docs/DECODE_STATE_LAYOUTS.md:57-78",
            "2026-04-28",
            Trust.MEASURED,
            toolchain="coremltools 9.0, iOS 18 target",
            device="Mac, Bonsai 1.7B",
            figure="error code -14",
        ),
        Evidence(
            "other converters meet the same error on caches that grow by concatenation",
            "finnvoor/CoreMLPipelines#4, apple/coremltools#2325",
            "2025-01-04",
            Trust.REPORTED,
        ),
    )
    remedy = "Write one position with `write slice`, or keep the cache `store io`."
    error_texts = (
        "Failed to build the model execution plan using a model architecture file",
        "with error code: -14",
        "This model was not loaded with the Core ML Framework",
    )
    bad = """
topology rolled_state {
  model "gemma3.json"
  target ane ios18 a17
  context 2048
  kv { all: store state, write shift }
  chunk chunk1 = L0-8
  chunk chunk2 = L9-17 + norm + head(argmax)
  allow state.update because "an example"
}
"""
    good = """
topology sliced_state {
  model "gemma3.json"
  target ane ios18 a17
  context 2048
  kv { all: store state, write slice }
  chunk chunk1 = L0-8
  chunk chunk2 = L9-17 + norm + head(argmax)
  allow state.update because "an example"
}
"""
    bad_mil = """
main(row: fp16[1,1,1,64], at: int32[4], kv: state fp16[1,1,512,64]) {
  old: fp16[1,1,512,64] = read_state(input=kv)
  tail: fp16[1,1,511,64] = slice_by_size(x=old, begin=[0, 0, 1, 0], size=[1, 1, 511, 64])
  new: fp16[1,1,512,64] = concat(values=(tail, row), axis=2)
  write_state(input=kv, data=new)
  return row
}
"""
    good_mil = """
main(row: fp16[1,1,1,64], at: int32[4], kv: state fp16[1,1,512,64]) {
  old: fp16[1,1,512,64] = read_state(input=kv)
  new: fp16[1,1,512,64] = slice_update(x=old, update=row, begin=at, end=at)
  write_state(input=kv, data=new)
  return row
}
"""

    def _check(self, subject: Subject) -> Iterator[Finding]:
        for chunk, _ in subject.placed():
            rolled = [one for one in subject.held(chunk) if one.kv.write is Write.SHIFT]
            if rolled:
                layers = listed([one.index for one in rolled])
                message = f"`{chunk.name}` rolls states by concatenation ({layers})"
                help_ = "write `all: write slice`, or keep these caches `store io`"
                span = subject.at(rolled[0], "write")
                yield self.flag(span, message, "error -14", chunk=chunk.name, help=help_)

    def _check_mil(self, subject: Mil) -> Iterator[Finding]:
        from topoc.dsl.lint.at_ops import at_ops
        from topoc.dsl.lint.trace import WRITES, written

        for function in subject.package.functions:
            ops = [one for one in function.of(*WRITES) if _is_joined(function, one)]
            if ops:
                message = f"state `{written(ops[0])[0]}` is written as a concatenation of itself"
                way = "write one position with `slice_update`, or blend it in with a mask"
                yield at_ops(self, subject, function, ops, message, help=way)


def _is_joined(function: "Function", write: "Op") -> bool:
    """Whether the new value joins a part of the old one with something else."""
    from topoc.dsl.lint.trace import CASTS, READS, origin, written

    state, value = written(write)
    maker = function.maker(origin(function, value, CASTS))
    if maker is None or maker.kind != "concat":
        return False
    parts = [function.maker(origin(function, one, CASTS)) for one in maker.inputs.get("values", ())]
    return any(
        one is not None and one.kind in READS and one.operand("input") == state for one in parts
    )
