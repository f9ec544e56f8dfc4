"""Ops that need no builder: constants, and what a moved chunk boundary changes.

A boundary decides how many rows a cache has. So other chunks of a known layout want slices and
joins of other sizes and nothing else, whose results follow from their arguments in a line. Whatever
is not plain is left to coremltools, errors too.
"""

from collections.abc import Iterable, Mapping
from math import prod
from typing import Any

import numpy as np

from topoc.lowering.coreml_proto import mil
from topoc.lowering.emit.mil.description import value_type
from topoc.lowering.emit.mil.var import Asked, Literal, Signature, Type
from topoc.lowering.interpret.dtypes import BY_NAME, Dtype

CONST = "const"

NAME = "made"
"""Of the op in a template; the names of its results, and of an op beside it, begin with it."""

ARGUMENT = "a"
"""Then its number: the name of what a template reads, in the order of the signature."""

FILE = "@model_path/weights/weight.bin"
SMALL = "@small"
"""A weight of a few elements stands in the model itself."""

LONG = 10
"""Elements from which on coremltools puts a constant into the file."""


def directly(asked: Signature) -> tuple[Any, tuple[Type, ...]] | None:
    """The op in a block of MIL and the types of its results; None where coremltools is to tell."""
    arguments = dict(asked.arguments)
    if asked.kind == CONST:
        return _constant(arguments["val"])
    rule = {"slice_by_size": _sliced, "concat": _joined}.get(asked.kind)
    result = rule(arguments) if rule else None
    if result is None:
        return None
    made = mil().Block()
    op, number = _op(made, asked.kind, result), 0
    for parameter, one in arguments.items():
        for _ in one if isinstance(one, tuple) else (one,):
            op.inputs[parameter].arguments.add(name=f"{ARGUMENT}{number}")
            number += 1
    return made, (result,)


def _op(block: Any, kind: str, result: Type) -> Any:
    op = block.operations.add(type=kind)
    _set(op.attributes["name"], Literal.of(NAME))
    op.outputs.add(name=NAME, type=value_type(result))
    return op


def _constant(literal: Asked) -> tuple[Any, tuple[Type, ...]]:
    assert isinstance(literal, Literal)  # noqa: S101 — a constant's only argument
    made, kind = mil().Block(), Type(literal.dtype, literal.shape)
    _set(_op(made, CONST, kind).attributes["val"], literal)
    return made, (kind,)


def _set(value: Any, literal: Literal) -> None:
    """Make a value of a literal; what is long, or a weight, lies elsewhere."""
    value.type.CopyFrom(value_type(Type(literal.dtype, literal.shape)))
    kind = BY_NAME[literal.dtype]
    long = prod(literal.shape) >= LONG and kind.code is not None  # there are types no file has
    if long or literal.placed:
        value.blobFileValue.fileName = FILE if long else SMALL
        return
    immediate(value, kind, literal.data)


def immediate(value: Any, kind: Dtype, data: bytes) -> None:
    """Let a value hold numbers, or a text, itself."""
    tensor = value.immediateValue.tensor
    if kind.field == "bytes":
        tensor.bytes.values = data
    elif kind.field == "strings":
        tensor.strings.values[:] = [data.decode()]
    else:
        getattr(tensor, kind.field).values[:] = np.frombuffer(data, kind.held).tolist()


def _sliced(arguments: Mapping[str, Asked]) -> Type | None:
    x, begin, size = (arguments[key] for key in ("x", "begin", "size"))
    if not (isinstance(x, Type) and isinstance(begin, Literal) and isinstance(size, Literal)):
        return None
    first, wanted = begin.array.tolist(), size.array.tolist()
    if not len(first) == len(wanted) == len(x.shape):
        return None
    places = zip(first, wanted, x.shape, strict=True)
    fits = all(at >= 0 and 0 < many <= whole - at for at, many, whole in places)
    return Type(x.dtype, tuple(wanted)) if fits else None


def _joined(arguments: Mapping[str, Asked]) -> Type | None:
    parts, axis = arguments["values"], arguments["axis"]
    plain = arguments["interleave"] == Literal.of(False)  # noqa: FBT003 — a constant of MIL's
    if not (plain and isinstance(parts, tuple) and isinstance(axis, Literal)):
        return None
    kinds = [Type(one.dtype, one.shape) for one in parts if isinstance(one, Type | Literal)]
    place = int(axis.array)
    others = {(one.dtype, len(one.shape), _without(one.shape, place)) for one in kinds}
    if len(kinds) != len(parts) or len(others) != 1 or not 0 <= place < len(kinds[0].shape):
        return None
    first, size = kinds[0], sum(one.shape[place] for one in kinds)
    return Type(first.dtype, (*first.shape[:place], size, *first.shape[place + 1 :]))


def _without(shape: Iterable[int], place: int) -> tuple[int, ...]:
    return tuple(size for at, size in enumerate(shape) if at != place)
