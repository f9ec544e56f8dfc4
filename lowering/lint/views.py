"""A Core ML model's protobuf as `topoc.dsl.lint.mil`; generated messages are untyped, hence Any."""

import re
import struct
from collections.abc import Iterator
from math import prod
from typing import Any

from topoc.dsl.diagnostic import Place
from topoc.dsl.lint import mil
from topoc.lowering.interpret.blob import unreadable
from topoc.lowering.interpret.dtypes import BY_NUMBER

KNOWN = 64  # elements: longer constants are weights, whose values nobody asks for
DIALECT = re.compile(r"^(?:ios|coreml)\d+\.", re.IGNORECASE)
FORMATS = {"fp16": "e", "int8": "b", "uint8": "B", "int16": "h", "uint16": "H"}
FORMATS |= {"int32": "i", "uint32": "I", "fp32": "f"}


def view(path: str, model: Any) -> mil.Package:
    """An ML program under the path that people know it by."""
    described = {one.name: one for one in model.description.functions}
    functions = (
        _function(path, name, function, described.get(name, model.description))
        for name, function in sorted(model.mlProgram.functions.items())
    )
    return mil.Package(path, tuple(functions))


def _function(path: str, name: str, function: Any, described: Any) -> mil.Function:
    if function.opset not in function.block_specializations:
        message = f"function `{name}` has no block for its opset `{function.opset}`"
        raise unreadable(Place(path, name), message)
    block = function.block_specializations[function.opset]
    flexible = {one.name: _flexibility(one.type.multiArrayType) for one in described.input}
    given = [(one.type.HasField("stateType"), _value(one)) for one in function.inputs]
    return mil.Function(
        name=name,
        opset=function.opset,
        inputs=tuple(
            mil.Feature(one.name, one.type, _named(flexible.get(one.name, ""), one.type))
            for is_state, one in given
            if not is_state
        ),
        states=tuple(one for is_state, one in given if is_state),
        outputs=tuple(block.outputs),
        body=tuple(map(_op, block.operations)),
    )


def _flexibility(array: Any) -> str:
    kind = array.WhichOneof("ShapeFlexibility")
    if kind == "enumeratedShapes":
        return "enumerated" if len(array.enumeratedShapes.shapes) > 1 else ""
    if kind == "shapeRange":
        sizes = array.shapeRange.sizeRanges
        return "range" if any(one.lowerBound != one.upperBound for one in sizes) else ""
    return ""


def _named(flexible: str, kind: mil.Tensor) -> str:
    return flexible or ("unknown" if mil.FLEXIBLE in kind.shape else "")


def _op(op: Any) -> mil.Op:
    kind = DIALECT.sub("", op.type)
    outputs = tuple(map(_value, op.outputs))
    inputs = {key: tuple(_operands(argument)) for key, argument in op.inputs.items()}
    attributes = dict(op.attributes)
    named = attributes.pop("name", None)
    value = attributes.pop("val", None)
    name = _text(named) or (outputs[0].name if outputs else "")
    # Before CoreML8 a constexpr keeps its parts among the attributes.
    inputs |= {key: (_literal(one),) for key, one in attributes.items()}
    return mil.Op(
        kind=kind,
        name=name,
        inputs=inputs,
        outputs=outputs,
        blocks=tuple(map(_block, op.blocks)),
        value=None if value is None else _literal(value),
    )


def _block(block: Any) -> mil.Block:
    return mil.Block(
        inputs=tuple(map(_value, block.inputs)),
        ops=tuple(map(_op, block.operations)),
        outputs=tuple(block.outputs),
    )


def _operands(argument: Any) -> Iterator[mil.Operand]:
    for binding in argument.arguments:
        if binding.WhichOneof("binding") == "name":
            yield binding.name
        else:
            yield _literal(binding.value)


def _text(value: Any) -> str:
    if value is None:
        return ""
    found = value.immediateValue.tensor.strings.values
    return found[0] if found else ""


def _value(named: Any) -> mil.Value:
    return mil.Value(named.name, _type(named.type))


def _type(kind: Any) -> mil.Tensor:
    """A state has the type of what it holds; what is no tensor is called by its kind."""
    if kind.WhichOneof("type") == "stateType":
        kind = kind.stateType.wrappedType
    if kind.WhichOneof("type") != "tensorType":
        return mil.Tensor(str(kind.WhichOneof("type")), ())
    tensor = kind.tensorType
    shape = tuple(
        one.constant.size if one.WhichOneof("dimension") == "constant" else mil.FLEXIBLE
        for one in tensor.dimensions
    )
    known = BY_NUMBER.get(tensor.dataType)
    return mil.Tensor(known.name if known else f"type {tensor.dataType}", shape)


def _literal(value: Any) -> mil.Literal:
    kind = _type(value.type)
    if value.WhichOneof("value") == "blobFileValue":
        stored = value.blobFileValue
        return mil.Literal(kind, stored=(stored.fileName, stored.offset))
    tensor = value.immediateValue.tensor
    field = tensor.WhichOneof("value")
    if field is None or prod(kind.shape) > KNOWN:
        return mil.Literal(kind)
    held = getattr(tensor, field).values
    if field != "bytes":
        return mil.Literal(kind, tuple(held))
    return mil.Literal(kind, _unpacked(held, kind.dtype))


def _unpacked(held: bytes, dtype: str) -> tuple[float, ...] | None:
    """Numbers from bytes; those of less than a byte are left alone."""
    code = FORMATS.get(dtype)
    if code is None or len(held) % struct.calcsize(code):
        return None
    return struct.unpack(f"<{len(held) // struct.calcsize(code)}{code}", held)
