"""Plain views of MIL: what a package computes, without its weights and without coremltools.

Lowering fills them from the protobuf, whoever wrote the package; rules ask them questions.
Op types have no dialect prefix here: `conv`, never `ios18.conv`.

Rules show programs as short texts, which tests read:

    main(x: fp16[1,64,1,8], kv: state fp16[1,1,512,64]) {
      w: fp16[64,64,1,1] = const()
      y: fp16[1,64,1,8] = conv(x=x, weight=w)
      write_state(input=kv, data=y)
      return y
    }

An operand is a name, a number, `true`, a "text", a list of numbers, `(a, b)` for several names,
`fp32(1e-6)` for a number of another type than int32 or fp16, or `uint4[64,32]` for a stored weight.
A `?` is an axis whose size is known only when the program runs.
"""

from collections.abc import Iterator, Mapping
from functools import cached_property
from math import prod
from typing import Any

from attrs import field, frozen

from topoc.dsl.diagnostic import Place
from topoc.dsl.plain import Plain

FLEXIBLE = -1  # an axis whose size is known only when the model runs
BITS = {"bool": 8, "fp16": 16, "fp32": 32, "fp64": 64, "string": 0}
CONSTANT = "const"
CONSTEXPR = "constexpr_"


@frozen(eq=False, repr=False)
class Tensor(Plain):
    """An element type by MIL's name, and a shape."""

    dtype: str
    shape: tuple[int, ...]

    @property
    def rank(self) -> int:
        """How many axes it has."""
        return len(self.shape)

    @property
    def elements(self) -> int:
        """How many elements it has; flexible axes count once."""
        return prod(size for size in self.shape if size != FLEXIBLE)

    @property
    def bits(self) -> int:
        """The size of one element."""
        digits = self.dtype.lstrip("uint")
        return int(digits) if digits.isdecimal() else BITS.get(self.dtype, 0)

    @property
    def floating(self) -> bool:
        """Whether its elements are fractions."""
        return self.dtype.startswith("fp")

    def __str__(self) -> str:
        sizes = ("?" if size == FLEXIBLE else str(size) for size in self.shape)
        return f"{self.dtype}[{','.join(sizes)}]"


NOTHING = Tensor("none", ())


@frozen(eq=False, repr=False)
class Value(Plain):
    """A named tensor: an input, a state, or one result of an op."""

    name: str
    type: Tensor


@frozen(eq=False, repr=False)
class Feature(Value):
    """An input as the package describes it: its sizes may be a range, or an enumeration."""

    flexible: str = ""  # "", "range", "enumerated" or "unknown"


@frozen(eq=False, repr=False)
class Literal(Plain):
    """A constant in the place of an operand."""

    type: Tensor
    values: tuple[Any, ...] | None = None  # bool, int, float or str; None where it is not known
    stored: tuple[str, int] | None = None  # weight file and offset

    @property
    def only(self) -> Any:  # as above
        """The value of a constant that has one element, if it is known."""
        return self.values[0] if self.values is not None and len(self.values) == 1 else None


Operand = str | Literal  # the name of a value, or a constant


@frozen(eq=False, repr=False)
class Op(Plain):
    """One operation, with the blocks that it runs under a condition or in a loop."""

    kind: str
    name: str
    inputs: Mapping[str, tuple[Operand, ...]] = field(factory=dict)
    outputs: tuple[Value, ...] = ()
    blocks: tuple["Block", ...] = ()
    value: Literal | None = None  # of a `const`

    @property
    def constant(self) -> bool:
        """Whether a compiler resolves it before anything runs."""
        return self.kind == CONSTANT or self.kind.startswith(CONSTEXPR)

    @property
    def type(self) -> Tensor:
        """The type of its first result; of an op without results, that of nothing."""
        return self.outputs[0].type if self.outputs else NOTHING

    @property
    def result(self) -> str:
        """The name of its first result, or of the op where it has none."""
        return self.outputs[0].name if self.outputs else self.name

    def operand(self, key: str) -> Operand | None:
        """The first operand that is bound to a parameter."""
        bound = self.inputs.get(key, ())
        return bound[0] if bound else None

    @property
    def names(self) -> Iterator[str]:
        """The values that it reads."""
        return (one for bound in self.inputs.values() for one in bound if isinstance(one, str))


@frozen(eq=False, repr=False)
class Block(Plain):
    """A list of operations that an op holds."""

    inputs: tuple[Value, ...]
    ops: tuple[Op, ...]
    outputs: tuple[str, ...]


@frozen(slots=False, eq=False, repr=False)
class Function(Plain):
    """One function of a package."""

    name: str
    opset: str
    inputs: tuple[Feature, ...]
    states: tuple[Value, ...]
    outputs: tuple[str, ...]
    body: tuple[Op, ...]

    @cached_property
    def ops(self) -> tuple[Op, ...]:
        """All operations in order, those in blocks behind the op that holds them."""
        return tuple(_walk(self.body))

    @cached_property
    def compute(self) -> tuple[Op, ...]:
        """The operations that run; constants do not."""
        return tuple(op for op in self.ops if not op.constant)

    def of(self, *kinds: str) -> Iterator[Op]:
        """The operations of some types."""
        for kind in kinds:
            yield from self._kinds.get(kind, ())

    def maker(self, operand: Operand | None) -> Op | None:
        """The operation that makes a value; None for an input, a state and a literal."""
        return self._makers.get(operand) if isinstance(operand, str) else None

    def readers(self, name: str) -> tuple[Op, ...]:
        """The operations that read a value, each once."""
        return self._readers.get(name, ())

    def type_of(self, operand: Operand | None) -> Tensor:
        """The type of a value or literal."""
        if isinstance(operand, Literal):
            return operand.type
        return self._types.get(operand, NOTHING) if operand else NOTHING

    def literal(self, operand: Operand | None) -> Literal | None:
        """What is known of a constant, whether it stands in place or has an op of its own."""
        if operand is None or isinstance(operand, Literal):
            return operand
        maker = self.maker(operand)
        return maker.value if maker is not None and maker.kind == CONSTANT else None

    def is_constant(self, operand: Operand | None) -> bool:
        """Whether a value is known before anything runs."""
        if operand is None or isinstance(operand, Literal):
            return True
        maker = self.maker(operand)
        return maker is not None and maker.constant

    def variables(self, op: Op) -> tuple[str, ...]:
        """The values that an op reads and that are no constants."""
        return tuple(name for name in op.names if not self.is_constant(name))

    def state_of(self, name: str) -> Value | None:
        """The state of a name."""
        return next((one for one in self.states if one.name == name), None)

    @cached_property
    def _kinds(self) -> dict[str, list[Op]]:
        kinds: dict[str, list[Op]] = {}
        for op in self.ops:
            kinds.setdefault(op.kind, []).append(op)
        return kinds

    @cached_property
    def _makers(self) -> dict[str, Op]:
        return {one.name: op for op in self.ops for one in op.outputs}

    @cached_property
    def _readers(self) -> dict[str, tuple[Op, ...]]:
        readers: dict[str, dict[int, Op]] = {}
        for op in self.ops:
            for name in op.names:
                readers.setdefault(name, {})[id(op)] = op
        return {name: tuple(ops.values()) for name, ops in readers.items()}

    @cached_property
    def _types(self) -> dict[str, Tensor]:
        values: list[Value] = [*self.inputs, *self.states]
        for op in self.ops:
            values += op.outputs
            values += (one for block in op.blocks for one in block.inputs)
        return {one.name: one.type for one in values}


@frozen(eq=False, repr=False)
class Package(Plain):
    """A package and its functions; `path` is how people know it."""

    path: str
    functions: tuple[Function, ...]

    def place(self, function: Function, op: Op | None = None, part: str = "") -> Place:
        """Where an op stands, or a function or a named part of it."""
        inner = op.name if op is not None else part
        return Place(self.path, f"{function.name}/{inner}" if inner else function.name)


def _walk(ops: tuple[Op, ...]) -> Iterator[Op]:
    for op in ops:
        yield op
        for block in op.blocks:
            yield from _walk(block.ops)
