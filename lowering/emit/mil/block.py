"""A function of a program as protobuf, one op after another."""

from collections.abc import Mapping, Sequence
from typing import Any

from attrs import define, field, frozen

from topoc.lowering.emit.mil.direct import CONST, FILE
from topoc.lowering.emit.mil.records import Records
from topoc.lowering.emit.mil.templates import Stencil, Templates
from topoc.lowering.emit.mil.var import (
    Argument,
    Literal,
    Placed,
    Result,
    Type,
    Var,
    flat,
    signature,
)

CONSTEXPR = "constexpr_"
READ = "read_state"


@frozen
class Small:
    """A weight of a few elements, and the value in the model that waits for it."""

    placed: Placed
    value: Any = field(repr=False)  # the message


@define
class Shared:
    """What the functions of a package have in common."""

    templates: Templates
    records: Records = field(factory=Records)
    small: list[Small] = field(factory=list)


@define
class Block:
    """The ops of one function; a message of protobuf's is Any."""

    shared: Shared
    message: Any = field(repr=False)  # a block of MIL, empty at first
    _read: set[str] = field(factory=set)  # names

    def op(
        self, kind: str, name: str, arguments: Mapping[str, Argument], results: Sequence[str] = ()
    ) -> list[Var]:
        """Add an op; its results take the names that are given, or names after its own."""
        asked, given = signature(kind, arguments), flat(arguments)
        template = self.shared.templates.of(asked)
        types = template.results
        names = results or (
            [name] if len(types) == 1 else [f"{name}_{n}" for n in range(len(types))]
        )
        for one in template.stencils:
            self._add(one, name, given, names)
        if kind.startswith(CONSTEXPR):
            known = [Result(asked, place) for place in range(len(types))]
            return [Var(*one) for one in zip(names, types, known, strict=True)]
        return [Var(name, one, one) for name, one in zip(names, types, strict=True)]

    def const(self, name: str, literal: Literal, placed: Placed | None = None) -> Var:
        """Add a constant: a literal, or what stands for a weight."""
        made = Var(name, Type(literal.dtype, literal.shape), literal, placed)
        self.op(CONST, name, {"val": made})
        return made

    def end(self, outputs: Sequence[str]) -> None:
        """Name the outputs. What a state holds after a write is read where something needs it."""
        self._read.update(outputs)
        self.message.outputs.extend(outputs)
        ops = self.message.operations
        for place in reversed(range(len(ops))):
            if ops[place].type == READ and ops[place].outputs[0].name not in self._read:
                del ops[place]

    def _add(self, stencil: Stencil, name: str, given: list[Var], results: Sequence[str]) -> None:
        op = self.message.operations.add()
        op.CopyFrom(stencil.op)
        op.attributes["name"].immediateValue.tensor.strings.values[0] = name + stencil.suffix
        for output, place in zip(op.outputs, stencil.results, strict=True):
            output.name = results[place]
        for parameter, place, number in stencil.names:
            op.inputs[parameter].arguments[place].name = given[number].name
            self._read.add(given[number].name)
        for parameter, number in stencil.weights:
            constant = op.type == CONST
            value = op.attributes["val"] if constant else op.inputs[parameter].arguments[0].value
            self._place(given[number], value)

    def _place(self, var: Var, value: Any) -> None:
        """Let a value refer to where the data of a constant will lie."""
        file, records = value.blobFileValue, self.shared.records
        if var.placed is None:
            assert isinstance(var.known, Literal)  # noqa: S101 — nothing else lies in a file
            file.offset = records.literal(var.known)
        elif file.fileName == FILE:
            file.offset = records.weight(var.placed)
        else:
            self.shared.small.append(Small(var.placed, value))
