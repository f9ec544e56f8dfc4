"""What makes a program well formed, checked after every pass.

The emitter trusts these: MIL binds a repeated name to the first weight in silence, and emits
dead ops and unused inputs as they come.
"""

import re
from collections import Counter
from collections.abc import Iterator

from topoc.lowering.ir import Program, TensorType, Value
from topoc.lowering.ops import ALL_OPS

LEGAL = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
RESERVED = frozenset(
    [
        "any",
        "bool",
        "program",
        "func",
        "tensor",
        "list",
        "dict",
        "tuple",
        "true",
        "false",
        "string",
        "bf16",
        "fp16",
        "fp32",
        "fp64",
        "int8",
        "int16",
        "int32",
        "int64",
        "uint8",
        "uint16",
        "uint32",
        "uint64",
        "state",
    ]
)
MAX_RANK = 5


class MalformedProgramError(Exception):
    """A program that breaks the rules of the form: a defect of the compiler, never of its input."""


def verify(program: Program) -> None:
    """Raise MalformedProgramError, with every fault, unless the program is well formed."""
    found = [*_names(program), *_types(program), *_uses(program), *_weights(program)]
    if found:
        raise MalformedProgramError(f"{program.name}: " + "; ".join(found))


def _values(program: Program) -> list[Value]:
    return [one.value for one in program.inputs] + [
        value for binding in program.bindings for value in binding.results
    ]


def _names(program: Program) -> Iterator[str]:
    counts = Counter(value.name for value in _values(program))
    if not LEGAL.fullmatch(program.name) or program.name.lower() in RESERVED:
        yield f"`{program.name}` is no name that MIL keeps"
    for name, count in counts.items():
        if count > 1:
            yield f"%{name} is bound {count} times"
        if not LEGAL.fullmatch(name) or name.lower() in RESERVED:
            yield f"%{name} is no name that MIL keeps"


def _types(program: Program) -> Iterator[str]:
    for binding in program.bindings:
        if type(binding.op) not in ALL_OPS:
            yield f"{binding.op.mnemonic} is not in ALL_OPS"
        types = tuple(value.type for value in binding.results)
        if types != binding.op.result_types():
            yield f"%{binding.results[0].name} has another type than its op gives"
    for value in _values(program):
        if not 1 <= len(value.shape) <= MAX_RANK or min(value.shape) < 1:
            yield f"%{value.name} has the shape {value.shape}"


def _uses(program: Program) -> Iterator[str]:
    known = {one.value for one in program.inputs}
    read = {output.value for output in program.outputs}
    for binding in program.bindings:
        for operand in binding.op.operands:
            if operand not in known:
                yield f"%{operand.name} is read before it is bound"
        known.update(binding.results)
        read.update(binding.op.operands)
    for values in [(one.value,) for one in program.inputs] + [b.results for b in program.bindings]:
        if not read.intersection(values):
            yield f"%{values[0].name} is never read"
    outputs = Counter(output.value for output in program.outputs)
    for value, count in outputs.items():
        if count > 1 or value not in known or any(value == one.value for one in program.inputs):
            yield f"%{value.name} can't be an output"


def _weights(program: Program) -> Iterator[str]:
    types: dict[str, TensorType] = {}
    for weight in program.weights:
        if types.setdefault(weight.key, weight.type) != weight.type:
            yield f"@{weight.key} is used at two types"
