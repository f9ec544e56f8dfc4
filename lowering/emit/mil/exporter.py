"""MIL to protobuf by coremltools' own exporter, without any weight.

A constant that stands for a checkpoint tensor holds no data. When the exporter asks for its file
value, a record is set aside for it. Tensors of fewer than ten elements stand in the model itself,
as all constants of that size do: they refer to a file that is not there until they are filled in.
"""

from collections.abc import Iterator
from typing import Any

from attrs import frozen

from topoc.lowering.emit.mil.environment import Placed, Placeholders
from topoc.lowering.emit.mil.records import Records
from topoc.lowering.emit.mil.toolkit import toolkit

FILE = "@model_path/weights/weight.bin"


SMALL = "@small"


@frozen
class Small:
    """A constant of a few elements, which stands in the model itself."""

    placed: Placed
    shape: tuple[int, ...]
    dtype: Any  # numpy's, or coremltools' own of less than a byte


@frozen
class Export:
    """The Core ML model of a MIL program, and what it needs of weights."""

    model: Any  # coremltools' message
    records: Records
    small: list[tuple[Any, Small]]  # values in the model, and what they are to be filled with


def export(program: Any, placeholders: Placeholders) -> Export:
    """The Core ML model of a MIL program."""
    kit = toolkit()
    exporter = _exporter(program, placeholders)
    functions = {
        name: exporter.convert_function(function, kit.load._OPSET[kit.specification])  # noqa: SLF001
        for name, function in program.functions.items()
    }
    proto = kit.proto.MIL_pb2.Program(version=1, functions=functions)
    outer = kit.load.CoreMLProtoExporter(
        program, proto, None, None, None, "mlprogram", "milinternal", kit.specification
    )
    model = outer.export(kit.specification)
    small = [
        (value, exporter.small[value.blobFileValue.offset])
        for function in model.mlProgram.functions.values()
        for block in function.block_specializations.values()
        for value in _values(block)
        if value.blobFileValue.fileName == SMALL
    ]
    return Export(model, exporter.records, small)


def _values(block: Any) -> Iterator[Any]:
    """Every value that stands in a block."""
    for op in block.operations:
        yield from op.attributes.values()
        for given in op.inputs.values():
            yield from (one.value for one in given.arguments if one.HasField("value"))
        for inner in op.blocks:
            yield from _values(inner)


def _exporter(program: Any, placeholders: Placeholders) -> Any:
    kit = toolkit()
    load = kit.load

    class StreamingExporter(load.MILProtoExporter):  # type: ignore[misc, name-defined]  # untyped
        """Sets a record aside for each weight, once."""

        records = Records()
        small: list[Small] = []  # noqa: RUF012 — of this class, which is made once a program

        def get_milproto_value(self, var: Any) -> Any:
            given = placeholders.weights.get(var.op.weight_id)
            if given is None or load.should_use_weight_file(var.val, kit.specification):
                return super().get_milproto_value(var)
            self.small.append(Small(given, var.val.shape, var.val.dtype))
            return _refers(var, SMALL, len(self.small) - 1)

        def create_file_value(self, var: Any) -> Any:
            key = var.op.weight_id
            if key not in self.weight_id_to_file_value:
                given = placeholders.weights.get(key)
                records = self.records
                offset = records.literal(var.val) if given is None else records.weight(given)
                self.weight_id_to_file_value[key] = _refers(var, FILE, offset)
            return self.weight_id_to_file_value[key]

    return StreamingExporter(prog=program, weights_dir="", specification_version=kit.specification)


def _refers(var: Any, file: str, offset: int) -> Any:
    """A value that refers to a record."""
    load = toolkit().load
    primitive = load.types_to_proto_primitive(var.sym_type.get_primitive())
    return load.create_file_value_tensor(
        file_name=file, offset=offset, dim=var.val.shape, data_type=primitive
    )
