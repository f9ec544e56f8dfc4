"""What coremltools' builder and exporter make of one op."""

from collections.abc import Mapping
from itertools import chain
from typing import Any

import numpy as np

from topoc.lowering.emit.mil.direct import ARGUMENT, CONST, FILE, NAME, SMALL
from topoc.lowering.emit.mil.toolkit import toolkit
from topoc.lowering.emit.mil.var import Known, Literal, Result, Signature, Type


def derive(asked: Signature) -> tuple[bytes, tuple[Type, ...]]:
    """The op in a block of MIL, and the types of its results.

    What it reads is called `a0`, `a1` and so on, itself `made`. A weight lies in the file, or is
    small, at the number of its argument. Raises what the builder raises, and TypeError where it
    would add constants for parameters that an emitter left out.
    """
    kit, literals = toolkit(), dict[str, Literal]()
    inputs = {n: _placeholder(one) for n, one in _named(asked, "").items() if isinstance(one, Type)}
    with kit.function(inputs, opset_version=kit.opset) as function:
        made = _op(asked, NAME, dict(function.inputs), literals)
        function.set_outputs(made)
    _refuse_defaults(asked, function, literals)
    whole = _exporter(literals).create_block(function)
    kept = [op for op in whole.operations if _name(op).startswith(NAME)]
    block: bytes = kit.proto.MIL_pb2.Block(operations=kept).SerializeToString(deterministic=True)
    return block, tuple(map(_type, made))


def _named(asked: Signature, owner: str) -> dict[str, Known]:
    """The arguments by the names that they have here."""
    listed = (one if isinstance(one, tuple) else (one,) for _, one in asked.arguments)
    return {f"{owner}{ARGUMENT}{n}": one for n, one in enumerate(chain.from_iterable(listed))}


def _op(
    asked: Signature, name: str, given: dict[str, Any], literals: dict[str, Literal]
) -> list[Any]:
    """The results of an op, after constants and decompressed weights that it reads."""
    if asked.kind == CONST:
        ((_, one),) = asked.arguments
        assert isinstance(one, Literal)  # noqa: S101 — a constant has one argument, its value
        literals[name] = one
        return [toolkit().mb.const(val=_value(one), name=name)]
    owner = "" if name == NAME else name
    for key, one in _named(asked, owner).items():
        if isinstance(one, Literal):
            (given[key],) = _op(Signature(CONST, (("val", one),)), key, given, literals)
        elif isinstance(one, Result):
            given[key] = _op(one.of, key, given, literals)[one.place]
            given[key].name = key
    vars_ = iter([given[key] for key in _named(asked, owner)])
    read = {
        key: [next(vars_) for _ in one] if isinstance(one, tuple) else next(vars_)
        for key, one in asked.arguments
    }
    made = getattr(toolkit().mb, asked.kind)(**read, name=name)
    return list(made) if isinstance(made, (list, tuple)) else [made]


def _name(op: Any) -> str:
    found: str = op.attributes["name"].immediateValue.tensor.strings.values[0]
    return found


def _placeholder(one: Type) -> Any:
    types, mb = toolkit().types, toolkit().mb
    make = mb.state_tensor_placeholder if one.state else mb.placeholder
    return make(shape=one.shape, dtype=types.string_to_builtin(one.dtype))


def _value(literal: Literal) -> Any:
    """A literal as the builder wants it; the rows of a weight are all one."""
    if literal.dtype == "bool" and not literal.shape:
        return bool(literal.data[0])
    if literal.dtype == "string":
        return literal.data.decode()
    types = toolkit().types
    kind = types.nptype_from_builtin(types.string_to_builtin(literal.dtype))
    held = np.frombuffer(literal.data, np.dtype(kind).str)
    if not literal.placed:
        value = held.reshape(literal.shape)
        return value if literal.shape else value[()]
    row = held.reshape(literal.shape[1:]) if held.size > 1 else held[0]
    whole = np.broadcast_to(row, literal.shape)
    return whole.view(kind)  # a broadcast would lose the name of a type of less than a byte


def _refuse_defaults(asked: Signature, function: Any, literals: Mapping[str, Literal]) -> None:
    consts = (op.name for op in function.operations if op.op_type == CONST)
    added = sorted(set(consts) - literals.keys())
    if added:
        message = f"coremltools would add {', '.join(added)} to `{asked.kind}`: emit them all"
        raise TypeError(message)


def _exporter(literals: Mapping[str, Literal]) -> Any:
    kit = toolkit()
    load = kit.load

    class Exporter(load.MILProtoExporter):  # type: ignore[misc, name-defined]  # untyped
        """Gives files and places for weights."""

        def get_milproto_value(self, var: Any) -> Any:
            if load.should_use_weight_file(var.val, kit.specification):
                return _refers(var, FILE)
            if literals[var.name].placed:
                return _refers(var, SMALL)
            return super().get_milproto_value(var)

    return Exporter(prog=kit.program(), weights_dir="", specification_version=kit.specification)


def _refers(var: Any, file: str) -> Any:
    """A value that refers to the data of an argument."""
    load = toolkit().load
    return load.create_file_value_tensor(
        file_name=file,
        offset=0 if var.name == NAME else int(var.name.rpartition(ARGUMENT)[2]),
        dim=var.val.shape,
        data_type=load.types_to_proto_primitive(var.sym_type.get_primitive()),
    )


def _type(var: Any) -> Type:
    types = toolkit().types
    return Type(types.builtin_to_string(var.dtype), tuple(var.shape))
