"""Values that a package stores, immediate or in weight files, compressed or not."""

from math import prod
from typing import Any

import numpy as np
import torch

from topoc.dsl.diagnostic import Place
from topoc.lowering.interpret.blob import unreadable
from topoc.lowering.interpret.dequantize import DECODERS, NEEDED
from topoc.lowering.interpret.dtypes import BY_NAME, Array, Dtype, packed_bytes, unpack
from topoc.lowering.interpret.function import FLEXIBLE, Binding, Function, Op, dtype_of, shape_of
from topoc.lowering.interpret.package import Package

Key = tuple[Any, ...]
COMPUTED = {
    "bool": torch.bool,
    "fp16": torch.float32,
    "fp32": torch.float32,
    "int8": torch.int32,
    "int16": torch.int32,
    "int32": torch.int32,
    "uint8": torch.int32,
    "uint16": torch.int32,
}


class Constants:
    """What one function's constant values are; tensors are kept by what they are made from."""

    def __init__(self, package: Package, function: Function) -> None:
        self._package = package
        self._function = function
        self._ops = {
            one.name: (op, at)
            for op in function.ops
            if _is_constant(op)
            for at, one in enumerate(op.outputs)
        }

    def holds(self, binding: Binding) -> bool:
        """Whether this is a constant, and not a value that a run computes."""
        return not isinstance(binding, str) or binding in self._ops

    def array(self, binding: Binding, place: Place) -> Array:
        """The value as it is stored: fp16 as fp16, sub-byte integers in whole bytes."""
        if not isinstance(binding, str):
            return self._value(binding, place)
        if binding not in self._ops:
            raise unreadable(place, f"`{binding}` must be a constant here, and is none")
        op, at = self._ops[binding]
        place = self._place(op)
        if op.type == "const":
            return self._value(op.value, place)
        parts = {key: self.array(bound[0], place) for key, bound in op.inputs.items() if bound}
        decoded = DECODERS[op.type](parts, place)
        value, declared = decoded[at] if isinstance(decoded, tuple) else decoded, op.outputs[at]
        if value.shape != declared.shape:
            message = f"`{op.name}` decodes to {value.shape} and declares {declared.shape}"
            raise unreadable(place, message)
        return value

    def tensor(self, binding: Binding, place: Place) -> torch.Tensor:
        """The value as it is computed with: floats as fp32, integers as int32."""
        key = self._key(binding)
        if key not in self._package.decoded:
            self._package.decoded[key] = as_computed(self.array(binding, place))
        found: torch.Tensor = self._package.decoded[key]
        return found

    def _key(self, binding: Binding) -> Key:
        if isinstance(binding, str):
            if binding not in self._ops:
                return (binding,)  # an error that decoding will name
            op, at = self._ops[binding]
            if op.type != "const":
                parts = sorted(op.inputs.items())
                return (op.type, at, *((name, *map(self._key, bound)) for name, bound in parts))
            binding = op.value
        # A value's protobuf holds its type with either its content or its file and offset.
        return (binding.SerializeToString(deterministic=True),)

    def _value(self, value: Any, place: Place) -> Array:
        if not value.type.HasField("tensorType"):
            raise unreadable(
                place, f"a constant is a {value.type.WhichOneof('type')}, not a tensor"
            )
        shape, name = shape_of(value.type.tensorType), dtype_of(value.type.tensorType)
        if name not in BY_NAME or FLEXIBLE in shape:
            raise unreadable(
                place, f"a constant has {name} {shape}, which no stored value can have"
            )
        dtype, count = BY_NAME[name], prod(shape)
        if value.WhichOneof("value") == "immediateValue":
            return _immediate(value.immediateValue, dtype, count, place).reshape(shape)
        stored = value.blobFileValue
        blob = self._package.blob(stored.fileName, place)
        return blob.read(stored.offset, dtype, count, place).reshape(shape)

    def _place(self, op: Op) -> Place:
        return Place(str(self._package.model_path), f"{self._function.name}/{op.name}")


def _is_constant(op: Op) -> bool:
    """Earlier opsets have ops of the decoders' names that keep their parts elsewhere."""
    if op.type == "const":
        return op.value is not None
    return op.type in DECODERS and all(op.inputs.get(name) for name in NEEDED[op.type])


def as_computed(value: Array) -> torch.Tensor:
    """A stored value in the type it is computed with, in memory of its own."""
    if value.dtype in (np.float16, np.float32):
        return torch.from_numpy(value).to(torch.float32, copy=True)
    if value.dtype == np.bool_:
        return torch.from_numpy(value).clone()
    return torch.from_numpy(value.astype(np.int32))


def _immediate(value: Any, dtype: Dtype, count: int, place: Place) -> Array:
    """An immediate value as numpy, from the one field in which its type is written."""
    field = value.tensor.WhichOneof("value")
    if value.WhichOneof("value") != "tensor" or (field not in {None, dtype.field}):
        raise unreadable(place, f"a constant of `{dtype.name}` is written as `{field}`")
    if field is None and count:
        raise unreadable(place, "a constant has no value")
    held = getattr(value.tensor, dtype.field).values
    if dtype.field == "bytes":
        if len(held) != packed_bytes(dtype, count):
            raise unreadable(
                place, f"a constant has {len(held)} bytes, not those of {count} values"
            )
        return unpack(np.frombuffer(bytearray(held), np.uint8), dtype, count)
    if len(held) != count:
        raise unreadable(place, f"a constant has {len(held)} values, and its type {count}")
    return np.array(list(held), dtype.held)
