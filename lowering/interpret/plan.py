"""A function made ready to run: a flat list of steps over numbered slots."""

from collections.abc import Iterator
from typing import Any

import torch
from attrs import evolve, field, frozen

from topoc.dsl.diagnostic import Diagnostic, Place, TopocError, error
from topoc.lowering.interpret.blob import unreadable
from topoc.lowering.interpret.constants import COMPUTED, Constants
from topoc.lowering.interpret.function import FLEXIBLE, Binding, Feature, Function, Op
from topoc.lowering.interpret.kernels import KERNELS
from topoc.lowering.interpret.kernels.kernel import Bound, Call, rounded
from topoc.lowering.interpret.package import Package


@frozen
class Step:
    """One call: read these slots, write those."""

    op: Op
    compute: Any  # a kernel's function; results go to one slot or to several
    reads: tuple[int, ...]
    writes: tuple[int, ...]


@frozen
class Prepared:
    """All steps of a function, and the slots with what is known before a run."""

    function: Function
    steps: tuple[Step, ...]
    slots: dict[str, int] = field(repr=False)  # of every named value
    initial: tuple[torch.Tensor | None, ...] = field(repr=False)  # constants in their slots


def prepare(
    package: Package, function: Function, *, rounding: bool, fractions: bool = False
) -> Prepared:
    """Prepare every op, and refuse the function with all findings if one has no kernel."""
    return _Preparation(package, function, rounding=rounding, fractions=fractions).run()


class _Preparation:
    """What grows while a function is prepared."""

    def __init__(
        self, package: Package, function: Function, *, rounding: bool, fractions: bool
    ) -> None:
        self._file = str(package.model_path)
        self._function = function
        self._rounding = rounding
        self._fractions = fractions
        self._constants = Constants(package, function)
        self._slots: dict[str, int] = {}
        self._initial: list[torch.Tensor | None] = []
        self._types: dict[str, Feature] = {}

    def run(self) -> Prepared:
        self._check_names()
        findings = list(self._unknown())
        if findings:
            raise TopocError(*findings)
        for feature in (*self._function.inputs, *self._function.states):
            self._new_slot(feature.name)
        steps = []
        for op in self._function.ops:
            if self._is_constant(op):
                continue
            try:
                steps.append(self._step(op))
            except TopocError as fault:
                findings.extend(fault.findings)
                for output in op.outputs:  # so that its readers are not found at fault too
                    self._slots.setdefault(output.name, 0)
        if findings:
            raise TopocError(*findings)
        for output in self._function.outputs:
            self._slot(output.name, self._place(None))
        return Prepared(self._function, tuple(steps), self._slots, tuple(self._initial))

    def _check_names(self) -> None:
        """Every value is named once, since two of one name would silently become one."""
        given = (*self._function.inputs, *self._function.states)
        made = [(op, one) for op in self._function.ops for one in op.outputs]
        for op, feature in [*((None, one) for one in given), *made]:
            if feature.name in self._types:
                message = f"two values of `{self._function.name}` are named `{feature.name}`"
                raise unreadable(self._place(op), message)
            self._types[feature.name] = feature

    def _unknown(self) -> Iterator[Diagnostic]:
        """What cannot be prepared whatever an op's parameters are."""
        where = f"function `{self._function.name}`"
        for feature in (*self._function.inputs, *self._function.states):
            if not _is_computed(feature):
                yield self._refused(f"{where} takes `{feature.name}` as {feature}", None)
        for op in self._function.ops:
            if self._is_constant(op):
                continue
            told = f"op `{op.name}` of {where}"
            if op.type not in KERNELS:
                yield self._refused(f"{told} is a `{op.type}`", op)
            elif strange := [one for one in op.outputs if not _is_computed(one)]:
                yield self._refused(f"{told} gives {strange[0]}", op)

    def _refused(self, what: str, op: Op | None) -> Diagnostic:
        message = f"{what}, which is not interpreted"
        return error("bundle.op-not-interpreted", message, self._place(op))

    def _step(self, op: Op) -> Step:
        if self._fractions and op.type == "quantize":
            op = evolve(op, outputs=tuple(evolve(one, dtype="fp32") for one in op.outputs))
        call = Call(op, self._constants, self._types, self._place(op))
        kernel = KERNELS[op.type]
        bound = kernel.prepare(call)
        reads = tuple(self._slot(operand, call.place) for operand in bound.operands)
        rounds = self._rounding and kernel.arithmetic and op.outputs[0].dtype == "fp16"
        compute = rounded(bound.compute) if rounds else bound.compute
        return Step(op, compute, reads, self._written(op, bound))

    def _written(self, op: Op, bound: Bound) -> tuple[int, ...]:
        if bound.state is None:
            return tuple(self._new_slot(output.name) for output in op.outputs)
        if bound.state not in {one.name for one in self._function.states}:
            raise unreadable(
                self._place(op), f"`{op.name}` writes `{bound.state}`, which is no state"
            )
        return (self._slots[bound.state],)

    def _slot(self, binding: Binding, place: Place) -> int:
        """Where a value is found; a constant gets its slot when it is first read."""
        if isinstance(binding, str) and binding in self._slots:
            return self._slots[binding]
        if not self._constants.holds(binding):
            raise unreadable(place, f"`{binding}` is read before any op makes it")
        at = self._new_slot(binding if isinstance(binding, str) else "")
        self._initial[at] = self._constants.tensor(binding, place)
        return at

    def _new_slot(self, name: str) -> int:
        self._initial.append(None)
        if name:
            self._slots[name] = len(self._initial) - 1
        return len(self._initial) - 1

    def _is_constant(self, op: Op) -> bool:
        return bool(op.outputs) and self._constants.holds(op.outputs[0].name)

    def _place(self, op: Op | None) -> Place:
        part = f"{self._function.name}/{op.name}" if op else self._function.name
        return Place(self._file, part)


def _is_computed(feature: Feature) -> bool:
    return feature.dtype in COMPUTED and FLEXIBLE not in feature.shape


@frozen
class Plan:
    """The steps with, for each, the slots that nothing reads after it."""

    steps: tuple[tuple[Step, tuple[int, ...]], ...]


def lay_out(prepared: Prepared, kept: frozenset[str]) -> Plan:
    """Free every intermediate after its last reader, but the named ones, states and constants."""
    never = {at for at, value in enumerate(prepared.initial) if value is not None}
    function = prepared.function
    for name in kept.union(one.name for one in (*function.outputs, *function.states)):
        never.add(prepared.slots[name])
    last: dict[int, int] = {}
    for at, step in enumerate(prepared.steps):
        last.update(dict.fromkeys((*step.reads, *step.writes), at))
    frees: dict[int, list[int]] = {}
    for slot, at in last.items():
        if slot not in never:
            frees.setdefault(at, []).append(slot)
    return Plan(tuple((step, tuple(frees.get(at, ()))) for at, step in enumerate(prepared.steps)))


def check_result(op: Op, feature: Feature, value: torch.Tensor, place: Place) -> None:
    """Refuse a package in which an op's declared result is not what the op computes."""
    expected = COMPUTED[feature.dtype]
    if tuple(value.shape) != feature.shape or value.dtype != expected:
        found = f"{str(value.dtype).removeprefix('torch.')} {tuple(value.shape)}"
        message = f"`{op.type}` computes {found} and declares `{feature.name}` as {feature}"
        raise unreadable(place, message)
