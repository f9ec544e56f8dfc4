"""The same emitters, through coremltools' builder op by op and its own exporter and writer."""

import numpy as np
import torch

from topoc.lowering.emit.mil import derive, module
from topoc.lowering.emit.mil.environment import Environment
from topoc.lowering.emit.mil.toolkit import toolkit
from topoc.lowering.emit.mil.var import NUMPY, Placed, Type, Var
from topoc.lowering.ir import DType


class Builder:
    """A block whose ops are coremltools' own, with real arrays in place of weights."""

    def __init__(self, function, arrays):
        self.function, self.arrays = function, arrays
        self.vars = dict(function.inputs)

    def op(self, kind, name, arguments, results=()):
        given = {
            key: [self._given(each) for each in one] if isinstance(one, list) else self._given(one)
            for key, one in arguments.items()
        }
        made = getattr(toolkit().mb, kind)(**given, name=name)
        several = list(made) if isinstance(made, (list, tuple)) else [made]
        for var, wanted in zip(several, results, strict=False):
            var.name = wanted
        return [self._told(var) for var in several]

    def const(self, name, literal, placed=None):
        var = toolkit().mb.const(val=self._array(literal, placed), name=name)
        if placed or isinstance(var.val, np.ndarray):
            var.op.weight_id = repr((literal.data, literal.shape, placed))
        self.vars[name] = var
        kind = Type(literal.dtype, literal.shape)
        return Var(name, kind, literal, placed)

    def end(self, names):
        self.function.set_outputs([self.vars[name] for name in names])

    def _given(self, var):
        """A var of coremltools'; a constant without a name is made where it is read."""
        if not var.name:
            part = f"{var.placed.weight.role}_{var.placed.part}"
            return self.vars[self.const(part, var.known, var.placed).name]
        return self.vars[var.name]

    def _told(self, var):
        self.vars[var.name] = var
        kind = derive._type(var)
        return Var(var.name, kind, kind)

    def _array(self, literal, placed):
        value = derive._value(literal)
        if placed is None:
            return value
        return np.ascontiguousarray(self.arrays(placed, value))


def drawn_arrays(drawn):
    """The arrays of a test's weights, none of which is compressed."""

    def array(placed: Placed, like):
        weight = placed.weight
        kind = torch.float16 if weight.type.dtype is DType.FP16 else torch.float32
        values = drawn.fetch(weight, kind).numpy().astype(NUMPY[weight.type.dtype])
        return (np.tile(values, 2) if placed.layout == "twice" else values).reshape(like.shape)

    return array


def through_coremltools(programs, folder, dtype, arrays, *, recipes=None, metadata=None):
    """The model and the weight file of a package."""
    kit = toolkit()
    kit.mb.name_count.clear()
    whole = kit.program()
    for program in programs:
        inputs = {
            one.value.name: derive._placeholder(module._input(one).type) for one in program.inputs
        }
        with kit.function(inputs, opset_version=kit.opset) as function:
            block = Builder(function, arrays)
            module._function(program, Environment(dtype, block, set(), recipes or {}))
        whole.add_function(program.name, function)
    whole.default_function_name = programs[0].name
    whole.export_as_multifunction = True
    model = saved(whole, folder)
    model.description.metadata.userDefined.update(metadata or {})
    return model.SerializeToString(deterministic=True), (folder / "weight.bin").read_bytes()


def saved(program, folder):
    """The message of a program; its constants are in the folder."""
    kit = toolkit()
    folder.mkdir(exist_ok=True, parents=True)
    return kit.load.load(
        program,
        str(folder),
        specification_version=kit.specification,
        convert_from="milinternal",
        convert_to="mlprogram",
    )
