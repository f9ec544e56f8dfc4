"""A state that is read before it is written, and used after."""

from collections.abc import Iterator
from functools import partial

from topoc.dsl.lint.at_ops import at_ops
from topoc.dsl.lint.mil import Function, Op
from topoc.dsl.lint.rule import Evidence, Finding, Rule, Trust
from topoc.dsl.lint.subject import Mil
from topoc.dsl.lint.trace import READS, WRITES, descends, origin, positions, readers, written


class StaleRead(Rule):
    """What is used after a state was written is read after that.

    A value that was read before the write does not show it. Attention over it misses the newest
    position, and the state looks as if it never changed.
    """

    remedy = "Read the state again after the write."
    evidence = (
        Evidence(
            "attention over the tensor from before the write lacks the last position",
            "CoreML-LLM docs/MLSTATE_PATTERN.md:54-59,129",
            "2026-04-28",
            Trust.MEASURED,
            toolchain="coremltools 9.0",
        ),
    )
    bad_mil = """
main(q: fp16[1,1,1,64], row: fp16[1,1,1,64], at: int32[4], kv: state fp16[1,1,512,64]) {
  old: fp16[1,1,512,64] = read_state(input=kv)
  new: fp16[1,1,512,64] = slice_update(x=old, update=row, begin=at, end=at)
  write_state(input=kv, data=new)
  scores: fp16[1,1,1,512] = matmul(x=q, y=old, transpose_y=true)
  return scores
}
"""
    good_mil = """
main(q: fp16[1,1,1,64], row: fp16[1,1,1,64], at: int32[4], kv: state fp16[1,1,512,64]) {
  old: fp16[1,1,512,64] = read_state(input=kv)
  new: fp16[1,1,512,64] = slice_update(x=old, update=row, begin=at, end=at)
  write_state(input=kv, data=new)
  now: fp16[1,1,512,64] = read_state(input=kv)
  scores: fp16[1,1,1,512] = matmul(x=q, y=now, transpose_y=true)
  return scores
}
"""

    def _check_mil(self, subject: Mil) -> Iterator[Finding]:
        for function in subject.package.functions:
            place = positions(function)
            for write in function.of(*WRITES):
                ops = list(_stale(function, write, place))
                if ops:
                    state, _ = written(write)
                    message = f"`{state}` is written, and what was read of it before is used after"
                    way = "read the state again after the write"
                    yield at_ops(self, subject, function, ops, message, help=way)


def _is(one: Op, other: Op) -> bool:
    return one is other


def _stale(function: Function, write: Op, place: dict[int, int]) -> Iterator[Op]:
    """What computes after a write with a value of the state from before it."""
    state, value = written(write)
    changed = origin(function, value)
    for read in function.of(*READS):
        if read.operand("input") != state or place[id(read)] > place[id(write)]:
            continue
        if not descends(function, changed, partial(_is, read)):
            continue  # the write keeps nothing of this read: it belongs to an earlier one
        for op in readers(function, read.result):
            if place[id(op)] > place[id(write)]:
                yield op
