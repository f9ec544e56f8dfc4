"""What emitters share: the vars of values, weights as placeholders, constants stored once."""

import hashlib
import re
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from attrs import define, field, frozen

from topoc.lowering.compress.recipe import Recipe
from topoc.lowering.emit.mil.toolkit import toolkit
from topoc.lowering.ir import DType, Op, Value, Weight

NUMPY = {DType.FP16: np.float16, DType.FP32: np.float32, DType.INT32: np.int32}
STATE = DType.FP16
"""The only element type of states: in an fp32 program casts stand around them."""

Constant = bool | int | float | str | tuple[int, ...] | np.ndarray[Any, Any]


@frozen
class Placed:
    """What a constant stands for: a weight in a layout, or one part of a compressed weight."""

    weight: Weight
    layout: str  # `conv` (O, I, 1, 1), `twice` (2C,) or `plain`
    part: str = ""  # of a compressed weight: `indices`, `lut`
    recipe: Recipe | None = None


@define
class Placeholders:
    """The weights that a package needs, by the id that their constants carry.

    The constants hold one zero, broadcast; the exporter fetches each tensor once.
    """

    weights: dict[str, Placed] = field(factory=dict)  # by id

    def register(self, placed: Placed) -> str:
        """The id of what is placed."""
        weight = placed.weight
        how = f"{placed.recipe}.{placed.part}" if placed.recipe else weight.type.dtype.value
        key = f"{weight.key}|{placed.layout}|{how}"
        self.weights[key] = placed
        return key


@define
class Environment:
    """One function being emitted. MIL vars are Any: coremltools is untyped.

    `names` begins with those of the program's values: MIL would bind a repeated one in silence.
    """

    dtype: DType
    placeholders: Placeholders
    names: set[str] = field(factory=set)
    recipes: Mapping[str, Recipe] = field(factory=dict)  # of matrices, by role
    vars: dict[Value, Any] = field(factory=dict)
    prefix: str = ""
    _constants: dict[object, Any] = field(factory=dict)

    def __getitem__(self, value: Value) -> Any:
        return self.vars[value]

    def op(self, kind: str, *, part: str = "", **arguments: Any) -> Any:
        """One MIL op. Without `part` it is the last of its emitter and takes the result's name.

        Arguments that are no vars become constants that the whole function shares.
        """
        name = self.unique(f"{self.prefix}_{part}") if part else self.prefix
        inputs = {key: self._argument(value) for key, value in arguments.items()}
        return getattr(toolkit().mb, kind)(name=name, **inputs)

    def weight(self, weight: Weight, layout: str) -> Any:
        """A checkpoint tensor as it is."""

        def make() -> Any:
            zero = np.zeros((), NUMPY[weight.type.dtype])
            value = np.broadcast_to(zero, stored_shape(weight.type.shape, layout))
            return self.placed(Placed(weight, layout), value, self.unique("w_" + weight.role))

        return self.once((weight, layout), make)

    def once(self, key: object, make: Callable[[], Any]) -> Any:
        """What is made of a key, shared by the whole function."""
        if key not in self._constants:
            self._constants[key] = make()
        return self._constants[key]

    def placed(self, placed: Placed, value: np.ndarray[Any, Any], name: str) -> Any:
        """A constant of the shape and type of `value`, whose data the exporter will fetch."""
        var = toolkit().mb.const(val=value, name=name)
        var.op.weight_id = self.placeholders.register(placed)
        return var

    def constant(self, value: Constant) -> Any:
        """A constant, in the function's element type where it is a float."""
        typed = self._typed(value)
        key: object = typed
        if isinstance(typed, (np.ndarray, np.generic)):
            key = (typed.dtype.str, np.shape(typed), typed.tobytes())
        if (key, type(typed)) not in self._constants:
            name = self.unique("c_" + _spelled(value))
            var = toolkit().mb.const(val=typed, name=name)
            if isinstance(typed, np.ndarray):
                digest = hashlib.sha256(repr(key).encode()).hexdigest()
                var.op.weight_id = f"literal|{digest}"
            self._constants[(key, type(typed))] = var
        return self._constants[(key, type(typed))]

    def _argument(self, value: Any) -> Any:
        if _is_var(value) or (isinstance(value, list) and all(map(_is_var, value))):
            return value
        return self.constant(value)

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


def stored_shape(shape: tuple[int, ...], layout: str) -> tuple[int, ...]:
    """The shape of a weight in the package."""
    if layout == "conv":
        return (*shape, 1, 1)
    return (2 * shape[0],) if layout == "twice" else shape


def _is_var(value: object) -> bool:
    return hasattr(value, "sym_type")


def _spelled(value: Constant) -> str:
    if isinstance(value, np.ndarray):
        return f"{value.dtype}_{'x'.join(map(str, value.shape))}"
    if isinstance(value, tuple):
        return "i_" + "_".join(map(str, value)).replace("-", "m")
    return f"{type(value).__name__}_{value}".replace("-", "m")


Emitter = Callable[[Any, Environment], Any]
"""Gives the var, or the tuple of vars, of an op's results; the op is of the emitter's own class."""

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
