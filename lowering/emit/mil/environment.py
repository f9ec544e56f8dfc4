"""What emitters share: the vars of values, weights as placeholders, constants stored once."""

import re
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from attrs import define, field

from topoc.lowering.compress.recipe import Recipe
from topoc.lowering.emit.mil.block import Block
from topoc.lowering.emit.mil.var import NUMPY, Literal, Placed, Var, stored_shape
from topoc.lowering.ir import DType, Op, Value, Weight

STATE = DType.FP16
"""The only element type of states: in an fp32 program casts stand around them."""

Constant = bool | int | float | str | tuple[int, ...] | np.ndarray[Any, Any]
Given = Var | list[Var] | Constant


@define
class Environment:
    """One function being emitted.

    `names` begins with those of the program's values: MIL would bind a repeated one in silence.
    """

    dtype: DType
    block: Block
    names: set[str] = field(factory=set)
    recipes: Mapping[str, Recipe] = field(factory=dict)  # of matrices, by role
    vars: dict[Value, Var] = field(factory=dict)
    results: tuple[str, ...] = ()  # the names of what is being emitted
    _constants: dict[object, Var] = field(factory=dict)

    def __getitem__(self, value: Value) -> Var:
        return self.vars[value]

    def op(self, kind: str, *, part: str = "", **arguments: Given) -> Var:
        """One MIL op of one result. Without `part` it is the last of its emitter.

        It then takes the result's name. Arguments that are no vars become constants that the whole
        function shares.
        """
        (made,) = self.ops(kind, part=part, **arguments)
        return made

    def ops(self, kind: str, *, part: str = "", **arguments: Given) -> list[Var]:
        """The same for an op of several results."""
        first = self.results[0]
        given = {key: self._argument(value) for key, value in arguments.items()}
        if part:
            return self.block.op(kind, self.unique(f"{first}_{part}"), given)
        return self.block.op(kind, first, given, self.results)

    def weight(self, weight: Weight, layout: str) -> Var:
        """A checkpoint tensor as it is."""

        def make() -> Var:
            shape, name = stored_shape(weight.type.shape, layout), self.unique("w_" + weight.role)
            zero = bytes(weight.type.dtype.bytes)
            literal = Literal(weight.type.dtype.value, shape, zero, placed=True)
            return self.block.const(name, literal, Placed(weight, layout))

        return self.once((weight, layout), make)

    def once(self, key: object, make: Callable[[], Var]) -> Var:
        """What is made of a key, shared by the whole function."""
        if key not in self._constants:
            self._constants[key] = make()
        return self._constants[key]

    def constant(self, value: Constant) -> Var:
        """A constant, in the function's element type where it is a float."""
        literal = Literal.of(self._typed(value))
        return self.once(
            literal, lambda: self.block.const(self.unique("c_" + _spelled(value)), literal)
        )

    def _argument(self, value: Given) -> Var | list[Var]:
        if isinstance(value, Var):
            return value
        return value if isinstance(value, list) else self.constant(value)

    def _typed(self, value: Constant) -> Any:
        if isinstance(value, (bool, str, np.ndarray)):
            return value
        if isinstance(value, float):
            return np.array(value, NUMPY[self.dtype])[()]
        return np.int32(value) if isinstance(value, int) else np.array(value, np.int32)

    def unique(self, wanted: str) -> str:
        """A legal name that nothing in the function has."""
        legal = re.sub(r"[^A-Za-z0-9_]", "_", wanted)
        name, count = legal, 1
        while name in self.names:
            count += 1
            name = f"{legal}_{count}"
        self.names.add(name)
        return name


def _spelled(value: Constant) -> str:
    if isinstance(value, np.ndarray):
        return f"{value.dtype}_{'x'.join(map(str, value.shape))}"
    if isinstance(value, tuple):
        return "i_" + "_".join(map(str, value)).replace("-", "m")
    return f"{type(value).__name__}_{value}".replace("-", "m")


Emitter = Callable[[Any, Environment], Var | list[Var]]
"""Gives the var, or the vars, of an op's results; the op is of the emitter's own class."""

_EMITTERS: dict[type[Op], Emitter] = {}


def emits(kind: type[Op]) -> Callable[[Emitter], Emitter]:
    """Register the one emitter of an op."""

    def register(emitter: Emitter) -> Emitter:
        assert kind not in _EMITTERS, f"{kind.mnemonic} has an emitter already"  # noqa: S101
        _EMITTERS[kind] = emitter
        return emitter

    return register


def emitters() -> Mapping[type[Op], Emitter]:
    """The emitter of each op."""
    return _EMITTERS
