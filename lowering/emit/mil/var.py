"""What ops hand each other while a function is emitted: names with types, and constants."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from attrs import frozen

from topoc.lowering.compress.recipe import Recipe
from topoc.lowering.interpret.dtypes import BY_NAME
from topoc.lowering.ir import DType, Weight

NUMPY = {DType.FP16: np.float16, DType.FP32: np.float32, DType.INT32: np.int32}


@frozen
class Placed:
    """What a constant stands for: a weight in a layout, or one part of a compressed weight."""

    weight: Weight
    layout: str  # `conv` (O, I, 1, 1), `twice` (2C,) or `plain`
    part: str = ""  # of a compressed weight: `indices`, `lut`
    recipe: Recipe | None = None


def stored_shape(shape: tuple[int, ...], layout: str) -> tuple[int, ...]:
    """The shape of a weight in the package."""
    if layout == "conv":
        return (*shape, 1, 1)
    return (2 * shape[0],) if layout == "twice" else shape


@frozen
class Type:
    """A tensor's type as MIL has it, or that of a state that holds such a tensor."""

    dtype: str
    shape: tuple[int, ...]
    state: bool = False


@frozen
class Literal:
    """What MIL must know of a constant to tell what an op gives.

    Of a weight that is its shape, its type and at most a pattern: `data` holds the last axes
    alone, and stands for all rows.
    """

    dtype: str  # `bool`, `string`, or an element type
    shape: tuple[int, ...]
    data: bytes
    placed: bool = False  # a weight

    @classmethod
    def of(cls, value: bool | str | np.ndarray[Any, Any] | np.generic) -> "Literal":  # noqa: FBT001 — any constant
        """A value as it is."""
        if isinstance(value, bool):
            return cls("bool", (), bytes([value]))
        if isinstance(value, str):
            return cls("string", (), value.encode())
        return cls(NAMES[value.dtype], value.shape, value.tobytes())

    @property
    def array(self) -> np.ndarray[Any, Any]:
        """The value of an array that is no weight."""
        return np.frombuffer(self.data, BY_NAME[self.dtype].held).reshape(self.shape)


NAMES: dict[Any, str] = {
    np.dtype(BY_NAME[one].held): one for one in ("fp16", "fp32", "int32", "bool")
}


@frozen
class Signature:
    """All that decides how an op stands in a program, but for names and weights."""

    kind: str
    arguments: "tuple[tuple[str, Asked], ...]"


@frozen
class Result:
    """One of the results of an op that decompresses: MIL asks where such a tensor comes from."""

    of: Signature
    place: int


Known = Type | Literal | Result
"""What is known of a tensor before it is read."""

Asked = Known | tuple[Known, ...]


@frozen
class Var:
    """The result of an op, an input, or a constant."""

    name: str
    type: Type
    known: Known
    placed: Placed | None = None  # of a constant that stands for a weight
    held: "Var | None" = None  # the state that this was read from

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of its type."""
        return self.type.shape


Argument = Var | list[Var]


def signature(kind: str, arguments: Mapping[str, Argument]) -> Signature:
    """The signature of an op that reads these."""
    return Signature(kind, tuple((key, _known(one)) for key, one in arguments.items()))


def _known(argument: Argument) -> Asked:
    return tuple(one.known for one in argument) if isinstance(argument, list) else argument.known


def flat(arguments: Mapping[str, Argument]) -> list[Var]:
    """All vars of the arguments, in order."""
    listed = (one if isinstance(one, list) else [one] for one in arguments.values())
    return [var for several in listed for var in several]
