"""The Program form: one typed, single-assignment program per chunk function.

    program decode(%hidden: fp16[1,64,1,1] = value(h1)) {
      %l0_norm: fp16[1,64,1,1] = rms_norm(%hidden, @layers.0.input_norm + 1, eps=1e-06, axis=1)
      return %l0_norm -> value(h2)
    }

An op is a frozen class: its fields of type `Value` are operands, those of type `Weight` name
checkpoint tensors, the rest are attributes. Types are derived by the op and never stated twice.
"""

from enum import Enum
from math import prod
from typing import Any, ClassVar, Literal

import attrs
from attrs import field, frozen

from topoc.dsl.plain import Plain
from topoc.dsl.source import Span
from topoc.lowering.manifest import Sink, Source


class DType(Enum):
    """The element types that programs use."""

    FP16 = "fp16"
    FP32 = "fp32"
    INT32 = "int32"

    @property
    def float_name(self) -> Literal["fp16", "fp32"]:
        """The manifest's word for it, of a float type."""
        return "fp32" if self is DType.FP32 else "fp16"

    @property
    def bytes(self) -> int:
        """The size of one element."""
        return 2 if self is DType.FP16 else 4


@frozen(cache_hash=True)  # sets and dicts of values are what passes are made of
class TensorType:
    """An element type and a static shape of at most five axes."""

    dtype: DType
    shape: tuple[int, ...]

    @property
    def bytes(self) -> int:
        """The size of a whole tensor."""
        return prod(self.shape) * self.dtype.bytes

    def __str__(self) -> str:
        return f"{self.dtype.value}[{','.join(map(str, self.shape))}]"


@frozen(cache_hash=True)
class Value:
    """A named tensor: an input, or the result of one op. Names are unique in a program."""

    name: str
    type: TensorType

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of its type."""
        return self.type.shape


@frozen
class Weight:
    """A checkpoint tensor by role, and what is done to each element: (stored + offset) * factor.

    Two weights that are equal are one constant in a package, whatever functions use it.
    """

    role: str
    type: TensorType
    offset: float = 0.0
    factor: float = 1.0

    @property
    def key(self) -> str:
        """The identity of the constant, but for its element type: role and recipe."""
        offset = f" + {self.offset:.17g}" if self.offset else ""
        factor = f" * {self.factor!r}" if self.factor != 1.0 else ""
        return f"{self.role}{offset}{factor}"

    def scaled(self, factor: float) -> "Weight":
        """The same weight, each element times a factor."""
        return attrs.evolve(self, factor=self.factor * factor)


@frozen(eq=False, repr=False)
class Op(Plain):
    """What every op has in common: a mnemonic, operands found among its fields, result types."""

    mnemonic: ClassVar[str]

    def result_type(self) -> TensorType:
        """The type of the only result."""
        raise NotImplementedError(self.mnemonic)

    def result_types(self) -> tuple[TensorType, ...]:
        """The types of all results."""
        return (self.result_type(),)

    @property
    def operands(self) -> tuple[Value, ...]:
        """The values it reads: its fields of type `Value`, then those of a tuple of them."""
        single, several, _ = _roles(type(self))
        found = [getattr(self, name) for name in single]
        for name in several:
            found += getattr(self, name)
        return tuple(found)

    @property
    def weights(self) -> tuple[Weight, ...]:
        """The checkpoint tensors it reads, in the order of its fields."""
        return tuple(getattr(self, name) for name in _roles(type(self))[2])

    def with_operands(self, new: dict[Value, Value]) -> "Op":
        """The same op, reading other values."""
        if new.keys().isdisjoint(self.operands):
            return self
        single, several, _ = _roles(type(self))
        changed: dict[str, Any] = {n: new.get(getattr(self, n), getattr(self, n)) for n in single}
        for name in several:
            changed[name] = tuple(new.get(value, value) for value in getattr(self, name))
        return attrs.evolve(self, **changed)


Roles = tuple[tuple[str, ...], tuple[str, ...], tuple[str, ...]]
_ROLES: dict[type, Roles] = {}


def _roles(kind: type[Op]) -> Roles:
    """The fields that hold a value, values, or a weight; looked up once a class."""
    if kind not in _ROLES:
        fields = attrs.fields(kind)
        wanted = (Value, tuple[Value, ...], Weight)
        single, several, weights = (
            tuple(one.name for one in fields if one.type == type_) for type_ in wanted
        )
        _ROLES[kind] = single, several, weights
    return _ROLES[kind]


@frozen
class Binding:
    """An op and the names of its results; `layer` is the decoder layer that it belongs to."""

    results: tuple[Value, ...]
    op: Op
    layer: int | None = None
    span: Span | None = field(default=None, eq=False, repr=False)

    @property
    def result(self) -> Value:
        """The only result."""
        (only,) = self.results
        return only


@frozen(eq=False, repr=False)
class Input(Plain):
    """An input feature and where the host takes it from."""

    value: Value
    source: Source


@frozen(eq=False, repr=False)
class Output(Plain):
    """An output feature and where the host takes it to."""

    value: Value
    sink: Sink


@frozen(eq=False, repr=False)
class Program(Plain):
    """One function of one chunk."""

    name: str
    inputs: tuple[Input, ...]
    bindings: tuple[Binding, ...]
    outputs: tuple[Output, ...]

    @property
    def weights(self) -> tuple[Weight, ...]:
        """Its distinct weights, in order of first use."""
        return tuple(dict.fromkeys(w for binding in self.bindings for w in binding.op.weights))

    def producer(self, value: Value) -> Binding | None:
        """The binding that produces a value; None for an input."""
        return next((b for b in self.bindings if value in b.results), None)
