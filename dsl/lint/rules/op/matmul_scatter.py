"""Rows that a matrix product places in a cache."""

from collections.abc import Iterator

from topoc.dsl.lint.at_ops import at_ops
from topoc.dsl.lint.mil import Function, Op
from topoc.dsl.lint.rule import Evidence, Finding, Rule, Trust
from topoc.dsl.lint.subject import Mil
from topoc.dsl.lint.trace import CASTS, descends, origin, other, readers, scalar

ARITHMETIC = frozenset({"matmul", "conv", "linear", "softmax"})


class MatmulScatter(Rule):
    """A cache takes the rows of several tokens by a slice.

    A product of a one-hot mask and the new rows has the size of the whole cache, in each layer.
    With 32 rows the compiler on the phone gave up. With 8 it did not, and the plan still said that
    93 % would run on the Neural Engine, while the memory of the process told of the GPU.
    """

    placement = True
    remedy = "Write the rows with `slice_update`."
    error_texts = ("MILCompilerForANE error: failed to compile ANE model", "Error=(11)")
    evidence = (
        Evidence(
            "32 rows by a product with a mask: MILCompilerForANE ends with error 11; 8 rows compile"
            " and run on the GPU",
            "CoreML-LLM Sources/CoreMLLLM/Qwen3VL2BGenerator.swift:273-283",
            "2026-04-26",
            Trust.MEASURED,
            toolchain="coremltools 9.0",
            device="iPhone 17 Pro, iOS 26",
            figure="1.7 GB of memory in place of 0.2 to 0.5",
        ),
    )
    bad_mil = """
main(mask: fp16[1,1,2048,32], k: fp16[1,8,32,128], cache: fp16[1,8,2048,128]) {
  placed: fp16[1,8,2048,128] = matmul(x=mask, y=k)
  y: fp16[1,8,2048,128] = add(x=cache, y=placed)
  return y
}
"""
    good_mil = """
main(k: fp16[1,8,32,128], cache: fp16[1,8,2048,128], begin: int32[4], end: int32[4]) {
  y: fp16[1,8,2048,128] = slice_update(x=cache, update=k, begin=begin, end=end)
  return y
}
"""

    def _check_mil(self, subject: Mil) -> Iterator[Finding]:
        limit = subject.profile.limit("rows of a matmul scatter")
        for function in subject.package.functions:
            found: dict[int, list[Op]] = {}
            for op in function.of("matmul"):
                found.setdefault(_rows(function, op), []).append(op)
            for rows, ops in found.items():
                severity = limit.rank(rows)
                if severity is not None:
                    message = f"a product with a mask places {rows} rows in a cache of {_size(ops)}"
                    way = "write the rows with `slice_update`"
                    yield at_ops(self, subject, function, ops, message, help=way, severity=severity)


def _size(ops: list[Op]) -> str:
    return f"{ops[0].type.shape[-2]:,} slots"


def _rows(function: Function, product: Op) -> int:
    """How many rows a product places; 0 if it is none that does."""
    mask, flipped = product.operand("x"), _is_set(function, product, "transpose_x")
    shape = function.type_of(mask).shape[-2:]
    if len(shape) < 2 or function.is_constant(mask):
        return 0
    slots, rows = reversed(shape) if flipped else shape
    if slots <= rows or descends(function, origin(function, mask, CASTS), _computes):
        return 0
    added = any(_adds_a_cache(function, product, op) for op in readers(function, product.result))
    return rows if added else 0


def _computes(op: Op) -> bool:
    return op.kind in ARITHMETIC


def _adds_a_cache(function: Function, product: Op, add: Op) -> bool:
    """Whether the result is added to something of its own shape that no weight made."""
    if add.kind != "add":
        return False
    cache = other(function, add, product.result)
    same = function.type_of(cache).shape == product.type.shape
    return same and not descends(function, cache, _computes)


def _is_set(function: Function, op: Op, flag: str) -> bool:
    return bool(scalar(function, op.operand(flag)))
