"""All functions of a package as one MIL program, and that as a Core ML model."""

import gc
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from attrs import frozen

from topoc.lowering.compress.recipe import Recipe
from topoc.lowering.emit.mil.environment import (
    NUMPY,
    STATE,
    Environment,
    Placed,
    Placeholders,
    emitters,
)
from topoc.lowering.emit.mil.exporter import Export, export
from topoc.lowering.emit.mil.records import Record
from topoc.lowering.emit.mil.toolkit import toolkit
from topoc.lowering.ir import DType, Input, Program
from topoc.lowering.ops.cache import WriteState
from topoc.lowering.verify import verify_together

Values = Callable[[Placed], Any]
"""Gives the array of a constant of a few elements."""


@frozen
class Emission:
    """The programs of a package in MIL, and the constants that it needs."""

    _export: Export

    @property
    def records(self) -> list[Record]:
        """What the weight file holds, in order."""
        return self._export.records.all

    def serialised(self, values: Values, metadata: Mapping[str, str]) -> bytes:
        """The model's bytes; `values` gives the constants of a few elements that stand in it.

        They depend on nothing but the arguments: automatic names start anew with each emission,
        and maps are serialised in order.
        """
        model = self._export.model
        for value, one in self._export.small:
            given = values(one.placed).reshape(one.shape).view(one.dtype)
            value.CopyFrom(toolkit().load.helper.create_tensor_value(given))
        model.description.metadata.userDefined.clear()
        model.description.metadata.userDefined.update(metadata)
        serialised: bytes = model.SerializeToString(deterministic=True)
        return serialised


def emit(
    programs: tuple[Program, ...], *, dtype: DType, recipes: Mapping[str, Recipe] | None = None
) -> Emission:
    """Emit the functions of a package.

    `recipes` says by role which matrices will stand compressed in it.
    """
    verify_together(programs)
    kit = toolkit()
    kit.mb.name_count.clear()
    placeholders = Placeholders()
    whole = kit.program()
    with _uncollected():
        for program in programs:
            env = Environment(dtype, placeholders, set(), recipes or {})
            whole.add_function(program.name, _function(program, env))
        whole.default_function_name = programs[0].name
        whole.export_as_multifunction = True
        return Emission(export(whole, placeholders))


@contextmanager
def _uncollected() -> Iterator[None]:
    """A graph that grows holds no garbage; looking for it takes a tenth of the time."""
    before = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if before:
            gc.enable()


def _function(program: Program, env: Environment) -> Any:
    kit = toolkit()
    inputs = {one.value.name: _placeholder(one) for one in program.inputs}
    values = [value for binding in program.bindings for value in binding.results]
    env.names |= {value.name for value in values} | inputs.keys()
    with kit.function(inputs, opset_version=kit.opset) as function:
        env.vars.update({one.value: function.inputs[one.value.name] for one in program.inputs})
        for binding in program.bindings:
            env.prefix = binding.results[0].name
            emitted = emitters()[type(binding.op)](binding.op, env)
            found = emitted if isinstance(emitted, (list, tuple)) else (emitted,)
            for value, var in zip(binding.results, found, strict=True):
                var.name = value.name
                held = STATE if isinstance(binding.op, WriteState) else value.type.dtype
                _check(value.shape, var, held)
                env.vars[value] = var
        function.set_outputs([env.vars[one.value] for one in program.outputs])
    return function


def _placeholder(one: Input) -> Any:
    """An input, or a state of the package, which all functions that name it share."""
    types, mb = toolkit().types, toolkit().mb
    if one.source.kind == "state":
        return mb.state_tensor_placeholder(one.value.shape, types.fp16)
    names = {DType.FP16: types.fp16, DType.FP32: types.fp32, DType.INT32: types.int32}
    return mb.placeholder(shape=one.value.shape, dtype=names[one.value.type.dtype])


def _check(shape: tuple[int, ...], var: Any, dtype: DType) -> None:
    """What MIL inferred must be what the program says."""
    inferred = toolkit().types.nptype_from_builtin(var.dtype)
    if tuple(var.shape) != shape or inferred is not NUMPY[dtype]:
        message = f"%{var.name} is {var.shape} of {inferred} in MIL, {shape} of {dtype.value} here"
        raise TypeError(message)
