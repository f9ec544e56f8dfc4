"""What makes a program well formed, checked after every pass.

The emitter trusts these: MIL binds a repeated name to the first weight in silence, and emits
dead ops and unused inputs as they come.
"""

from collections import Counter
from collections.abc import Iterator
from itertools import chain

from topoc.lowering.fits import FITS
from topoc.lowering.ir import Program, TensorType, Value
from topoc.lowering.ops import ALL_OPS
from topoc.lowering.ops.cache import StateRow, WriteState
from topoc.lowering.ops.feature import Keep

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
KNOWN = frozenset(ALL_OPS)


class MalformedProgramError(Exception):
    """A program that breaks the rules of the form: a defect of the compiler, never of its input."""


def verify(program: Program) -> None:
    """Raise MalformedProgramError, with every fault, unless the program is well formed."""
    found = [*_names(program), *_types(program), *_uses(program), *_weights(program)]
    found += _states(program)
    if found:
        raise MalformedProgramError(f"{program.name}: " + "; ".join(found))


def verify_together(programs: tuple[Program, ...]) -> None:
    """Raise MalformedProgramError unless the states of a package's programs are the same ones.

    Functions share a state by its name: one buffer has one name and one type in all of them.
    """
    types: dict[str, TensorType] = {}
    names: dict[str | None, str] = {}
    for program in programs:
        for one in program.inputs:
            if one.source.kind != "state":
                continue
            value = one.value
            if types.setdefault(value.name, value.type) != value.type:
                message = f"{program.name}: %{value.name} has another type in another function"
                raise MalformedProgramError(message)
            if names.setdefault(one.source.name, value.name) != value.name:
                other = names[one.source.name]
                message = f"{program.name}: %{value.name} is %{other} in another function"
                raise MalformedProgramError(message)


def _bound(program: Program) -> Iterator[tuple[Value, ...]]:
    """What each input binds, and each op."""
    yield from ((one.value,) for one in program.inputs)
    yield from (binding.results for binding in program.bindings)


def _names(program: Program) -> Iterator[str]:
    counts = Counter(value.name for value in chain.from_iterable(_bound(program)))
    if not is_legal(program.name):
        yield f"`{program.name}` is no name that MIL keeps"
    for name, count in counts.items():
        if count > 1:
            yield f"%{name} is bound {count} times"
        if not is_legal(name):
            yield f"%{name} is no name that MIL keeps"


def is_legal(name: str) -> bool:
    """Letters, digits and underscores, no digit first, and no word of MIL's own."""
    return name.isascii() and name.isidentifier() and name.lower() not in RESERVED


def _types(program: Program) -> Iterator[str]:
    for binding in program.bindings:
        if type(binding.op) not in KNOWN:
            yield f"{binding.op.mnemonic} is not in ALL_OPS"
        types = tuple([value.type for value in binding.results])
        if types != binding.op.result_types():
            yield f"%{binding.results[0].name} has another type than its op gives"
        fits = FITS.get(type(binding.op))
        if fits is not None and not fits(binding.op):
            yield f"%{binding.results[0].name} is of operands that don't fit each other"
    for value in chain.from_iterable(_bound(program)):
        shape = value.type.shape
        if not 1 <= len(shape) <= MAX_RANK or min(shape) < 1:
            yield f"%{value.name} has the shape {shape}"


def _uses(program: Program) -> Iterator[str]:
    entered = {one.value for one in program.inputs}
    known, read = set(entered), {output.value for output in program.outputs}
    for binding in program.bindings:
        operands = binding.op.operands
        if not known.issuperset(operands):
            unknown = (value for value in operands if value not in known)
            yield from (f"%{value.name} is read before it is bound" for value in unknown)
        known.update(binding.results)
        read.update(operands)
    if unread := known - read:
        yield from (f"%{values[0].name} is never read" for values in _ignored(program, unread))
    outputs = Counter(output.value for output in program.outputs)
    for value, count in outputs.items():
        if count > 1 or value not in known or value in entered:
            yield f"%{value.name} can't be an output"


def _ignored(program: Program, unread: set[Value]) -> Iterator[tuple[Value, ...]]:
    """The inputs and results among those, but for the results of what acts by itself."""
    made = [b.results for b in program.bindings if not isinstance(b.op, (WriteState, Keep))]
    bound = [(one.value,) for one in program.inputs] + made
    return (values for values in bound if unread.issuperset(values))


def _states(program: Program) -> Iterator[str]:
    """A state is read by ops of states, while it is the newest, and leaves by no output."""
    held = Counter(one.source.name for one in program.inputs if one.source.kind == "state")
    yield from (
        f"the state `{name}` is taken {count} times" for name, count in held.items() if count > 1
    )
    first = {one.value: one.value for one in program.inputs if one.source.kind == "state"}
    if not first and not any(isinstance(b.op, (StateRow, WriteState)) for b in program.bindings):
        return
    newest = {value: value for value in first}
    for binding in program.bindings:
        op = binding.op
        state = op.state if isinstance(op, (StateRow, WriteState)) else None
        if state is not None and state not in first:
            yield f"%{state.name} is no state"
        elif state is not None and newest[first[state]] != state:
            yield f"%{state.name} is read after %{newest[first[state]].name} was written"
        elif isinstance(op, WriteState):
            first[binding.result] = first[op.state]
            newest[first[op.state]] = binding.result
        for operand in op.operands:
            if operand in first and operand != state:
                yield f"%{operand.name} is a state and is read as a tensor"
    for output in program.outputs:
        if output.value in first:
            yield f"%{output.value.name} is a state and can't be an output"


def _weights(program: Program) -> Iterator[str]:
    types: dict[str, TensorType] = {}
    for weight in program.weights:
        known = types.setdefault(weight.key, weight.type)
        if known is not weight.type and known != weight.type:
            yield f"@{weight.key} is used at two types"
