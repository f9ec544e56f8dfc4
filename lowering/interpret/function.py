"""The functions of an ML program as plain data, taken from its protobuf."""

import re
from collections.abc import Iterator, Mapping
from typing import Any

from attrs import frozen

from topoc.dsl.diagnostic import Place
from topoc.lowering.interpret.blob import unreadable
from topoc.lowering.interpret.dtypes import BY_NUMBER

FLEXIBLE = -1  # a dimension that is known only when the model runs

Binding = Any  # the name of a value, or the value itself as MIL's untyped protobuf holds it


@frozen
class Feature:
    """A named value with its declared shape and data type."""

    name: str
    shape: tuple[int, ...]
    dtype: str

    def __str__(self) -> str:
        return f"{self.dtype} {self.shape}"


@frozen
class Op:
    """One operation of a function, in the order it runs."""

    type: str
    name: str
    inputs: Mapping[str, tuple[Binding, ...]]
    outputs: tuple[Feature, ...]
    value: Any = None  # of a `const`, as protobuf


@frozen
class Function:
    """One function of a package."""

    name: str
    opset: str
    inputs: tuple[Feature, ...]
    states: tuple[Feature, ...]
    outputs: tuple[Feature, ...]
    ops: tuple[Op, ...]


def read_function(name: str, function: Any, place: Place) -> Function:
    """The function as data; its body is the block written for its own opset."""
    if function.opset not in function.block_specializations:
        raise unreadable(place, f"function `{name}` has no block for its opset `{function.opset}`")
    block = function.block_specializations[function.opset]
    given = [(one.type.HasField("stateType"), _feature(one)) for one in function.inputs]
    ops = tuple(_ops(block))
    made = {out.name: out for op in ops for out in op.outputs} | {one.name: one for _, one in given}
    for output in block.outputs:
        if output not in made:
            raise unreadable(place, f"no op of function `{name}` makes its output `{output}`")
    return Function(
        name,
        function.opset,
        tuple(one for is_state, one in given if not is_state),
        tuple(one for is_state, one in given if is_state),
        tuple(made[output] for output in block.outputs),
        ops,
    )


def _ops(block: Any) -> Iterator[Op]:
    for op in block.operations:
        outputs = tuple(_feature(one) for one in op.outputs)
        name = (
            op.attributes["name"].immediateValue.tensor.strings.values
            if "name" in op.attributes
            else ()
        )
        yield Op(
            re.sub(r"^ios\d+\.", "", op.type),
            name[0] if name else (outputs[0].name if outputs else ""),
            {key: tuple(_bindings(argument)) for key, argument in op.inputs.items()},
            outputs,
            op.attributes.get("val"),
        )


def _bindings(argument: Any) -> Iterator[Binding]:
    for binding in argument.arguments:
        yield binding.name if binding.WhichOneof("binding") == "name" else binding.value


def _feature(named: Any) -> Feature:
    kind = named.type
    if kind.HasField("stateType"):
        kind = kind.stateType.wrappedType
    if not kind.HasField("tensorType"):
        return Feature(named.name, (), str(kind.WhichOneof("type")))
    return Feature(named.name, shape_of(kind.tensorType), dtype_of(kind.tensorType))


def shape_of(tensor: Any) -> tuple[int, ...]:
    """A tensor type's dimensions."""
    return tuple(
        one.constant.size if one.WhichOneof("dimension") == "constant" else FLEXIBLE
        for one in tensor.dimensions
    )


def dtype_of(tensor: Any) -> str:
    """A tensor type's data type by name; one that is not known is called by its number."""
    known = BY_NUMBER.get(tensor.dataType)
    return known.name if known else f"type {tensor.dataType}"
