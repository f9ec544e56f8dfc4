"""All functions of a package as one MIL program, and that as a Core ML model."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from attrs import field, frozen

from topoc.lowering.compress.packing import pack
from topoc.lowering.compress.recipe import Recipe
from topoc.lowering.coreml_proto import messages
from topoc.lowering.emit.mil import description
from topoc.lowering.emit.mil.block import Block, Shared, Small
from topoc.lowering.emit.mil.direct import immediate
from topoc.lowering.emit.mil.environment import STATE, Environment, emitters
from topoc.lowering.emit.mil.records import Record
from topoc.lowering.emit.mil.templates import Templates
from topoc.lowering.emit.mil.toolkit import SPECIFICATION
from topoc.lowering.emit.mil.var import Placed, Type, Var
from topoc.lowering.interpret.dtypes import BY_NUMBER
from topoc.lowering.ir import DType, Input, Program
from topoc.lowering.ops.cache import WriteState
from topoc.lowering.verify import verify_together

OPSET = "CoreML8"
"""Of iOS 18 and macOS 15."""

Values = Callable[[Placed], Any]
"""Gives the array of a constant of a few elements."""


@frozen
class Emission:
    """The programs of a package in MIL, and the constants that it needs."""

    _model: Any = field(repr=False)  # the message
    _shared: Shared = field(repr=False)

    @property
    def records(self) -> list[Record]:
        """What the weight file holds, in order."""
        return self._shared.records.all

    def serialised(self, values: Values, metadata: Mapping[str, str]) -> bytes:
        """The model's bytes; `values` gives the constants of a few elements that stand in it.

        They depend on nothing but the arguments: maps are serialised in order.
        """
        for one in self._shared.small:
            _fill(one, values(one.placed))
        self._model.description.metadata.userDefined.clear()
        self._model.description.metadata.userDefined.update(metadata)
        serialised: bytes = self._model.SerializeToString(deterministic=True)
        return serialised


def emit(
    programs: tuple[Program, ...],
    *,
    dtype: DType,
    recipes: Mapping[str, Recipe] | None = None,
    templates: Templates | None = None,
) -> Emission:
    """Emit the functions of a package.

    `recipes` says by role which matrices will stand compressed in it; `templates` holds the ops
    that earlier packages had.
    """
    verify_together(programs)
    shared = Shared(templates or Templates())
    model = messages().Model(specificationVersion=SPECIFICATION)
    model.mlProgram.version = 1
    model.description.defaultFunctionName = programs[0].name
    for program in programs:
        made = model.mlProgram.functions[program.name]
        made.opset = OPSET
        block = Block(shared, made.block_specializations[OPSET])
        inputs, outputs = _function(program, Environment(dtype, block, set(), recipes or {}))
        for one in inputs:
            made.inputs.add(name=one.name, type=description.value_type(one.type))
        model.description.functions.append(description.function(program.name, inputs, outputs))
    shared.templates.keep()
    return Emission(model, shared)


def _function(program: Program, env: Environment) -> tuple[list[Var], list[Var]]:
    """Emit the ops of a program; gives its inputs and outputs."""
    inputs = [_input(one) for one in program.inputs]
    env.names |= {one.name for one in inputs}
    env.names |= {value.name for binding in program.bindings for value in binding.results}
    env.vars.update(zip((one.value for one in program.inputs), inputs, strict=True))
    for binding in program.bindings:
        env.results = tuple(one.name for one in binding.results)
        emitted = emitters()[type(binding.op)](binding.op, env)
        found = emitted if isinstance(emitted, list) else [emitted]
        held = STATE if isinstance(binding.op, WriteState) else None
        for value, var in zip(binding.results, found, strict=True):
            wanted = Type((held or value.type.dtype).value, value.shape)
            _check(var, value.name, wanted)
            env.vars[value] = var
    outputs = [env.vars[one.value] for one in program.outputs]
    env.block.end([one.name for one in outputs])
    return inputs, outputs


def _input(one: Input) -> Var:
    """An input, or a state of the package, which all functions that name it share."""
    state = one.source.kind == "state"
    dtype = STATE if state else one.value.type.dtype
    kind = Type(dtype.value, one.value.shape, state)
    return Var(one.value.name, kind, kind)


def _check(var: Var, name: str, wanted: Type) -> None:
    """What MIL inferred must be what the program says."""
    if (var.name, var.type) != (name, wanted):
        message = f"%{name} is %{var.name}: {var.type} in MIL, {wanted} here"
        raise TypeError(message)


def _fill(small: Small, values: np.ndarray[Any, Any]) -> None:
    """Put the numbers of a weight where the model waits for them."""
    kind = BY_NUMBER[small.value.type.tensorType.dataType]
    if kind.bits < 8:
        codes = values.view(np.uint8) & np.uint8((1 << kind.bits) - 1)
        data = pack(codes, kind.bits).tobytes()
    else:
        data = values.astype(kind.held, copy=False).tobytes()
    immediate(small.value, kind, data)
