"""The Program form: one typed, single-assignment program per chunk function.

    program decode(%hidden: fp16[1,64,1,1] = value(h1)) {
      %l0_norm: fp16[1,64,1,1] = rms_norm(%hidden, @layers.0.input_norm + 1, eps=1e-06, axis=1)
      return %l0_norm -> value(h2)
    }

An op is a frozen class: its fields of type `Value` are operands, those of type `Weight` name
checkpoint tensors, the rest are attributes. Types are derived by the op and never stated twice.
"""

from enum import Enum
from itertools import chain
from math import prod
from typing import Any, ClassVar, Literal

import attrs
from attrs import field, frozen

from topoc.dsl.plain import Plain, Reader, once_a_class, reader
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


@frozen(repr=False)  # verify compares the types of every result
class TensorType(Plain):
    """An element type and a static shape of at most five axes."""

    dtype: DType
    shape: tuple[int, ...]

    @property
    def bytes(self) -> int:
        """The size of a whole tensor."""
        return prod(self.shape) * self.dtype.bytes

    def __str__(self) -> str:
        return f"{self.dtype.value}[{','.join(map(str, self.shape))}]"


@frozen(eq=False, repr=False)
class Value(Plain):
    """A named tensor: an input, or the result of one op. Names are unique in a program."""

    name: str
    type: TensorType

    def __hash__(self) -> int:
        return hash(self.name)  # sets and dicts of values are what passes are made of

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of its type."""
        return self.type.shape


@frozen(eq=False, repr=False)
class Weight(Plain):
    """A checkpoint tensor by role, and what is done to each element: (stored + offset) * factor.

    With `first`, only the rows from there on that its type has. Two weights that are equal are
    one constant in a package, whatever functions use it.
    """

    role: str
    type: TensorType
    offset: float = 0.0
    factor: float = 1.0
    first: int | None = None

    def __hash__(self) -> int:
        return hash(self.role)  # few weights differ in their recipes alone

    @property
    def key(self) -> str:
        """The identity of the constant, but for its element type: role and recipe."""
        offset = f" + {self.offset:.17g}" if self.offset else ""
        factor = f" * {self.factor!r}" if self.factor != 1.0 else ""
        rows = "" if self.first is None else f"[{self.first}:{self.first + self.type.shape[0]}]"
        return f"{self.role}{rows}{offset}{factor}"

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
        return _operands(type(self))(self)

    @property
    def weights(self) -> tuple[Weight, ...]:
        """The checkpoint tensors it reads, in the order of its fields."""
        return _weights(type(self))(self)

    def with_operands(self, new: dict[Value, Value]) -> "Op":
        """The same op, reading other values."""
        if new.keys().isdisjoint(self.operands):
            return self
        single, several = _named(type(self), Value), _named(type(self), tuple[Value, ...])
        changed: dict[str, Any] = {n: new.get(getattr(self, n), getattr(self, n)) for n in single}
        for name in several:
            changed[name] = tuple(new.get(value, value) for value in getattr(self, name))
        return attrs.evolve(self, **changed)


def _named(kind: type, wanted: object) -> tuple[str, ...]:
    """The fields of one type."""
    return tuple(one.name for one in attrs.fields(kind) if one.type == wanted)


@once_a_class
def _operands(kind: type) -> Reader:
    """What reads the values of an op."""
    single, several = _named(kind, Value), _named(kind, tuple[Value, ...])
    if not several:
        return reader(*single)
    first, then = reader(*single), reader(*several)
    return lambda op: (*first(op), *chain.from_iterable(then(op)))


@once_a_class
def _weights(kind: type) -> Reader:
    """What reads the weights of an op."""
    return reader(*_named(kind, Weight))


@frozen(eq=False, repr=False)
class Binding(Plain):
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
