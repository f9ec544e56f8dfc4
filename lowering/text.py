"""Programs as text, and back; the text is what people read and what golden tests hold.

    program decode(
      %hidden: fp16[1,64,1,1] = embedding(name=embed, scale=0.5)
    ) {
      %out: fp16[1,64,1,1] = rms_norm(x=%hidden, gain=@(norm: fp16[64]), eps=1e-06, axis=1) # l0
      return %out -> hidden()
    }

Spans are left out: equality ignores them too.
"""

import re
from collections.abc import Iterator
from typing import Any, Final, Literal, get_args, get_origin

import attrs

from topoc.lowering.ir import Binding, DType, Input, Output, Program, TensorType, Value, Weight
from topoc.lowering.manifest import Sink, Source
from topoc.lowering.ops import ALL_OPS

OPS: Final = {op.mnemonic: op for op in ALL_OPS}
TYPE = r"(?:fp16|fp32|int32)\[\d+(?:,\d+)*\]"
INPUT = re.compile(rf"%(\w+): ({TYPE}) = (\w+)\((.*)\)")
BINDING = re.compile(rf"  ((?:%\w+: {TYPE}(?:, )?)+) = (\w+)\((.*)\)(?: # l(\d+))?")
RESULT = re.compile(rf"%(\w+): ({TYPE})")
OUTPUT = re.compile(r"  return %(\w+) -> (\w+)\((.*)\)")
ARGUMENT = re.compile(r"(\w+)=(\[[^\]]*\]|@\([^)]*\)|[^,]+)(?:, |$)")
ROWS = r"(?:\[(\d+):(\d+)\])?"
WEIGHT = re.compile(rf"@\(([\w.]+){ROWS}(?: \+ ([^ ]+))?(?: \* ([^ ]+))?: ({TYPE})\)")


class ProgramTextError(ValueError):
    """A text that is no program, and the line that shows it."""


def show(program: Program) -> str:
    """The text of a program, ending with a line feed."""
    inputs = ",\n  ".join(_input(one) for one in program.inputs)
    lines = [f"program {program.name}(\n  {inputs}\n) {{"]
    lines += map(_binding, program.bindings)
    lines += [f"  return %{o.value.name} -> {_port(o.sink)}" for o in program.outputs]
    return "\n".join([*lines, "}", ""])


def _input(one: Input) -> str:
    return f"%{one.value.name}: {one.value.type} = {_port(one.source)}"


def _binding(binding: Binding) -> str:
    results = ", ".join(f"%{value.name}: {value.type}" for value in binding.results)
    arguments = ", ".join(
        f"{one.name}={_shown(getattr(binding.op, one.name))}"
        for one in attrs.fields(type(binding.op))
    )
    layer = "" if binding.layer is None else f" # l{binding.layer}"
    return f"  {results} = {binding.op.mnemonic}({arguments}){layer}"


def _port(port: Source | Sink) -> str:
    """A source or a sink, without what it leaves at its default."""
    told = [
        f"{one.name}={_shown(getattr(port, one.name))}"
        for one in attrs.fields(type(port))
        if one.name != "kind" and getattr(port, one.name) != one.default
    ]
    return f"{port.kind}({', '.join(told)})"


def _shown(value: Any) -> str:  # a field of any op
    if isinstance(value, Value):
        return f"%{value.name}"
    if isinstance(value, tuple):
        return f"[{', '.join(map(_shown, value))}]"
    if isinstance(value, Weight):
        return f"@({value.key}: {value.type})"
    return str(value)


def parse(text: str) -> Program:
    """The program of a text. Raises ProgramTextError, naming the line that can't be read."""
    name, lines = _head(text)
    reader = _Reader()
    inputs = tuple(map(reader.input, _take(lines, until=") {")))
    body = _take(lines, until="}")
    bindings = tuple(reader.binding(line) for line in body if not line.startswith("  return"))
    outputs = tuple(reader.output(line) for line in body if line.startswith("  return"))
    for line in lines:
        raise ProgramTextError(line)
    return Program(name, inputs, bindings, outputs)


def _head(text: str) -> tuple[str, Iterator[str]]:
    lines = iter(text.splitlines())
    first = next(lines, "")
    found = re.fullmatch(r"program (\w+)\(", first)
    if found is None:
        raise ProgramTextError(first)
    return found[1], lines


def _take(lines: Iterator[str], *, until: str) -> list[str]:
    taken: list[str] = []
    for line in lines:
        if line == until:
            return taken
        taken.append(line)
    raise ProgramTextError(until)


def _type(text: str) -> TensorType:
    dtype, _, shape = text.rstrip("]").partition("[")
    return TensorType(DType(dtype), tuple(map(int, shape.split(","))))


def _arguments(text: str, line: str) -> list[tuple[str, str]]:
    found = list(ARGUMENT.finditer(text))
    if "".join(one[0] for one in found) != text:
        raise ProgramTextError(line)
    return [(one[1], one[2]) for one in found]


class _Reader:
    """Values by name, as far as the text has been read."""

    def __init__(self) -> None:
        self.values: dict[str, Value] = {}

    def input(self, line: str) -> Input:
        name, type_, kind, arguments = _match(INPUT, line.strip().rstrip(","), line)
        port = self._made(Source, [("kind", kind), *_arguments(arguments, line)], line)
        return Input(self._bound(name, type_), port)

    def output(self, line: str) -> Output:
        name, kind, arguments = _match(OUTPUT, line, line)
        port = self._made(Sink, [("kind", kind), *_arguments(arguments, line)], line)
        return Output(self._value(name, line), port)

    def binding(self, line: str) -> Binding:
        results, mnemonic, arguments, layer = _match(BINDING, line, line)
        if mnemonic not in OPS:
            raise ProgramTextError(line)
        op = self._made(OPS[mnemonic], _arguments(arguments, line), line)
        values = tuple(self._bound(*found) for found in RESULT.findall(results))
        return Binding(values, op, None if layer is None else int(layer))

    def _bound(self, name: str, type_: str) -> Value:
        self.values[name] = Value(name, _type(type_))
        return self.values[name]

    def _value(self, name: str, line: str) -> Value:
        if name not in self.values:
            raise ProgramTextError(line)
        return self.values[name]

    def _made(self, kind: Any, told: list[tuple[str, str]], line: str) -> Any:  # op, Source, Sink
        types = {one.name: one.type for one in attrs.fields(kind)}
        try:
            return kind(**{name: self._read(text, types[name], line) for name, text in told})
        except (KeyError, TypeError, ValueError) as fault:
            raise ProgramTextError(line) from fault

    def _read(self, text: str, kind: Any, line: str) -> Any:  # the annotation of a field
        if text.startswith("%"):
            return self._value(text[1:], line)
        if text.startswith("["):
            inner = [one for one in text[1:-1].split(", ") if one]
            element = int if kind == tuple[int, ...] else None
            return tuple(self._read(one, element, line) for one in inner)
        if text.startswith("@"):
            return _weight(text, line)
        if get_origin(kind) is Literal and text not in get_args(kind):
            raise ProgramTextError(line)
        if kind is float or kind == float | None:
            return float(text)
        return int(text) if kind is int or kind == int | None else text


def _weight(text: str, line: str) -> Weight:
    role, first, last, offset, factor, type_ = _match(WEIGHT, text, line)
    start = None if first is None else int(first)
    found = Weight(role, _type(type_), float(offset or 0.0), float(factor or 1.0), start)
    if start is not None and start + found.type.shape[0] != int(last):
        raise ProgramTextError(line)
    return found


def _match(pattern: re.Pattern[str], text: str, line: str) -> tuple[Any, ...]:
    found = pattern.fullmatch(text)
    if found is None:
        raise ProgramTextError(line)
    return found.groups()
