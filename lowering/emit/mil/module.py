"""All functions of a package as one MIL program, and that as a Core ML model."""

from collections.abc import Mapping
from typing import Any

from topoc.lowering.compress.recipe import Recipe
from topoc.lowering.emit.mil.environment import NUMPY, STATE, Environment, Placeholders, emitters
from topoc.lowering.emit.mil.exporter import WeightSink, export
from topoc.lowering.emit.mil.toolkit import toolkit
from topoc.lowering.ir import DType, Input, Program
from topoc.lowering.ops.cache import WriteState
from topoc.lowering.verify import verify_together


def emit(
    programs: tuple[Program, ...],
    *,
    sink: WeightSink,
    metadata: dict[str, str],
    dtype: DType,
    recipes: Mapping[str, Recipe] | None = None,
) -> bytes:
    """The serialised model of a package; weights go to the sink, each one once.

    `recipes` says by role which matrices the sink will give compressed.

    The bytes depend on nothing but the arguments: automatic names start anew, and maps are
    serialised in order.
    """
    verify_together(programs)
    kit = toolkit()
    kit.mb.name_count.clear()
    placeholders = Placeholders()
    whole = kit.program()
    for program in programs:
        env = Environment(dtype, placeholders, set(), recipes or {})
        whole.add_function(program.name, _function(program, env))
    whole.default_function_name = programs[0].name
    whole.export_as_multifunction = True
    model = export(whole, placeholders, sink)
    model.description.metadata.userDefined.update(metadata)
    serialised: bytes = model.SerializeToString(deterministic=True)
    return serialised


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
