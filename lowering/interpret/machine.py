"""The interpreter of one function: prepared once, run as often as wanted."""

from collections.abc import Callable, Mapping, MutableMapping, Sequence
from pathlib import Path

import torch

from topoc.dsl.diagnostic import Place
from topoc.lowering.interpret.constants import COMPUTED
from topoc.lowering.interpret.features import Value, accept, no_value
from topoc.lowering.interpret.package import Package
from topoc.lowering.interpret.plan import Plan, Prepared, Step, check_result, lay_out, prepare

Observer = Callable[[str, str, torch.Tensor], None]
Registers = list[torch.Tensor | None]


class Machine:
    """A function of a package, ready to run on the CPU.

    fp16 is computed as fp32. With `rounding`, every arithmetic op's result is rounded to fp16 once,
    which foretells what overflows and underflows on a device; inputs and states are rounded as
    they come in. What is declared fp32 is never rounded. With `fractions`, `quantize` clips and
    keeps the parts of steps that it would round away: a function without jumps, to be compared.

        machine = Machine(Path("decode.mlpackage"), rounding=True)
        logits = machine.run({"x": x})["logits"]

    Machines of one `Package` share its decoded weights. Threads are the caller's business.
    """

    def __init__(
        self,
        package: Path | Package,
        function: str | None = None,
        *,
        rounding: bool = False,
        fractions: bool = False,
    ) -> None:
        self.package = package if isinstance(package, Package) else Package(package)
        self.function = self.package.function(function)
        self.rounding = rounding
        self._place = Place(str(self.package.model_path), self.function.name)
        self._prepared: Prepared = prepare(
            self.package, self.function, rounding=rounding, fractions=fractions
        )
        self._constants = {_memory(one) for one in self._prepared.initial if one is not None}
        self._plans: dict[frozenset[str], Plan] = {}
        self._checked = False

    def run(
        self,
        inputs: Mapping[str, Value],
        probes: Sequence[str] = (),
        states: MutableMapping[str, torch.Tensor] | None = None,
        observe: Observer | None = None,
    ) -> dict[str, torch.Tensor]:
        """The outputs, and the internal values that `probes` names, by name.

        They come as fp32, int32 or bool tensors of their own, whatever float type is declared.
        `states` is read and written: afterwards it holds a new tensor for each state of the
        function, and what it held before is as it was. A state it lacks starts at zero; one that
        only other functions of the package have is left alone. `observe` is called with the name,
        op type and value of each result as it is computed, in order; it must not change them.
        """
        registers = self._registers(inputs, states or {})
        foreign = self._constants | {_memory(one) for one in registers if one is not None}
        plan = self._plan(frozenset(probes))
        with torch.no_grad():
            if self._checked and observe is None:
                _execute(plan, registers)
            else:
                self._execute_watched(plan, registers, observe)
        if states is not None:
            for state in self.function.states:
                states[state.name] = self._take(state.name, registers, foreign)
        names = dict.fromkeys([*(one.name for one in self.function.outputs), *probes])
        return {name: self._take(name, registers, foreign) for name in names}

    def _registers(self, inputs: Mapping[str, Value], states: Mapping[str, Value]) -> Registers:
        registers: Registers = list(self._prepared.initial)
        foreign = self.package.states - {one.name for one in self.function.states}
        held = {name: state for name, state in states.items() if name not in foreign}
        values = accept(self.function.inputs, inputs, self._place, rounding=self.rounding)
        begun: dict[str, Value] = {
            one.name: torch.zeros(one.shape, dtype=COMPUTED[one.dtype])
            for one in self.function.states
        }
        values |= accept(self.function.states, begun | held, self._place, rounding=self.rounding)
        for name, value in values.items():
            registers[self._prepared.slots[name]] = value
        return registers

    def _plan(self, probes: frozenset[str]) -> Plan:
        if probes not in self._plans:
            for name in probes:
                if name not in self._prepared.slots:
                    raise no_value(name, self._place)
            self._plans[probes] = lay_out(self._prepared, probes)
        return self._plans[probes]

    def _execute_watched(self, plan: Plan, registers: Registers, observe: Observer | None) -> None:
        """Run with each result held against its declared type, and shown to the observer."""
        for step, frees in plan.steps:
            _perform(step, registers)
            for feature, slot in zip(step.op.outputs, step.writes, strict=False):
                value = registers[slot]
                if value is None:
                    continue
                place = Place(self._place.file, f"{self.function.name}/{step.op.name}")
                check_result(step.op, feature, value, place)
                if observe is not None:
                    observe(feature.name, step.op.type, value)
            for slot in frees:
                registers[slot] = None
        self._checked = True

    def _take(self, name: str, registers: Registers, foreign: set[int]) -> torch.Tensor:
        """A result in memory of its own, not of an input, a weight or an earlier result."""
        value = registers[self._prepared.slots[name]]
        if value is None:
            raise no_value(name, self._place)
        if _memory(value) in foreign:
            value = value.clone()
        foreign.add(_memory(value))
        return value


def _memory(value: torch.Tensor) -> int:
    return value.untyped_storage().data_ptr()


def _perform(step: Step, registers: Registers) -> None:
    result = step.compute(*[registers[at] for at in step.reads])
    if len(step.writes) == 1:
        registers[step.writes[0]] = result
        return
    for at, one in zip(step.writes, result, strict=True):
        registers[at] = one


def _execute(plan: Plan, registers: Registers) -> None:
    """Run and nothing more: `_perform` written out, since this loop is the interpreter's cost."""
    for step, frees in plan.steps:
        writes = step.writes
        result = step.compute(*[registers[at] for at in step.reads])
        if len(writes) == 1:
            registers[writes[0]] = result
        else:
            for at, one in zip(writes, result, strict=True):
                registers[at] = one
        for at in frees:
            registers[at] = None
