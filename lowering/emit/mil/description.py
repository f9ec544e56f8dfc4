"""The features of a package's functions, as Core ML's model description has them."""

from typing import Any

from topoc.lowering.coreml_proto import messages, mil
from topoc.lowering.emit.mil.var import Type, Var
from topoc.lowering.interpret.dtypes import BY_NAME, FEATURE_DTYPES

FEATURES = {name: number for number, name in FEATURE_DTYPES.items()}


def value_type(kind: Type) -> Any:
    """The type of a value in a program."""
    made = mil().ValueType()
    tensor = made.stateType.wrappedType.tensorType if kind.state else made.tensorType
    tensor.dataType, tensor.rank = BY_NAME[kind.dtype].number, len(kind.shape)
    for size in kind.shape:
        tensor.dimensions.add().constant.size = size
    return made


def function(name: str, inputs: list[Var], outputs: list[Var]) -> Any:
    """The description of one function."""
    made = messages().FunctionDescription(name=name)
    for one in inputs:
        into = made.state if one.type.state else made.input
        _feature(into.add(), one)
    for one in outputs:
        _feature(made.output.add(), one)
    return made


def _feature(feature: Any, var: Var) -> None:
    feature.name = var.name
    kind = feature.type.stateType.arrayType if var.type.state else feature.type.multiArrayType
    kind.dataType = FEATURES[var.type.dtype]
    kind.shape.extend(var.shape)
