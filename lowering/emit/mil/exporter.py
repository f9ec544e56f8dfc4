"""MIL to protobuf by coremltools' own exporter, with the weights streamed by us.

A constant that stands for a checkpoint tensor holds no data. When the exporter asks for its file
value, the tensor goes through the sink in row blocks, and only its place is kept. Tensors of fewer
than ten elements stand in the model itself, as all constants of that size do.
"""

from typing import Any, Protocol

from topoc.lowering.emit.mil.environment import Placed, Placeholders
from topoc.lowering.emit.mil.toolkit import toolkit


class WeightSink(Protocol):
    """Where constants go: writing one gives the offset of its record."""

    def weight(self, placed: Placed) -> int:
        """Fetch and write a checkpoint tensor, or a part of a compressed one."""

    def values(self, placed: Placed) -> Any:
        """Fetch the same, of a few elements."""

    def literal(self, value: Any) -> int:
        """Write an array."""


FILE = "@model_path/weights/weight.bin"


def export(program: Any, placeholders: Placeholders, sink: WeightSink) -> Any:
    """The Core ML model of a MIL program, its constants written to the sink."""
    kit = toolkit()
    exporter = _exporter(program, placeholders, sink)
    functions = {
        name: exporter.convert_function(function, kit.load._OPSET[kit.specification])  # noqa: SLF001
        for name, function in program.functions.items()
    }
    proto = kit.proto.MIL_pb2.Program(version=1, functions=functions)
    outer = kit.load.CoreMLProtoExporter(
        program, proto, None, None, None, "mlprogram", "milinternal", kit.specification
    )
    return outer.export(kit.specification)


def _exporter(program: Any, placeholders: Placeholders, sink: WeightSink) -> Any:
    kit = toolkit()
    load = kit.load

    class StreamingExporter(load.MILProtoExporter):  # type: ignore[misc, name-defined]  # untyped
        """Writes each weight once, through the sink."""

        def get_milproto_value(self, var: Any) -> Any:
            given = placeholders.weights.get(var.op.weight_id)
            if given is None or load.should_use_weight_file(var.val, kit.specification):
                return super().get_milproto_value(var)
            values = sink.values(given).reshape(var.val.shape).view(var.val.dtype)
            return load.helper.create_tensor_value(values)

        def create_file_value(self, var: Any) -> Any:
            key = var.op.weight_id
            if key not in self.weight_id_to_file_value:
                self.weight_id_to_file_value[key] = _written(var, placeholders, sink)
            return self.weight_id_to_file_value[key]

    return StreamingExporter(prog=program, weights_dir="", specification_version=kit.specification)


def _written(var: Any, placeholders: Placeholders, sink: WeightSink) -> Any:
    """Write a constant; gives the value that refers to its record."""
    load, key = toolkit().load, var.op.weight_id
    given = placeholders.weights.get(key)
    offset = sink.literal(var.val) if given is None else sink.weight(given)
    primitive = load.types_to_proto_primitive(var.sym_type.get_primitive())
    return load.create_file_value_tensor(
        file_name=FILE, offset=offset, dim=var.val.shape, data_type=primitive
    )
