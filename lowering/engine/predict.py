"""What computes a step: the interpreter on any system, or Core ML on a Mac."""

import sys
from collections.abc import Mapping, MutableMapping, Sequence
from typing import Any

import numpy as np
import torch
from attrs import define, field

from topoc.dsl.diagnostic import Place, TopocError, error
from topoc.lowering.bundle.reader import Bundle
from topoc.lowering.bundle.writes import states_of
from topoc.lowering.engine.positions import Array
from topoc.lowering.interpret.machine import Machine
from topoc.lowering.interpret.package import Package
from topoc.lowering.manifest import Step


@define
class InterpreterPredictor:
    """Interprets the saved packages, in fp32 or rounding to fp16 after each op.

    With `fractions`, activations that go through int8 are clipped there and not rounded.

    A package is opened once, and a function of it becomes a machine when it is first called.
    """

    bundle: Bundle
    rounding: bool = False
    fractions: bool = False
    _packages: dict[str, Package] = field(factory=dict, init=False, repr=False)
    _machines: dict[tuple[str, str], Machine] = field(factory=dict, init=False, repr=False)

    @property
    def wide(self) -> bool:
        """Without rounding, what fp16 features carry is fp32."""
        return not self.rounding

    def begin(self) -> "Interpreted":
        """A session's states; packages and machines serve all sessions."""
        return Interpreted(self)

    def machine(self, step: Step) -> Machine:
        """What runs a step's function."""
        key = step.package, step.function
        if key not in self._machines:
            if step.package not in self._packages:
                self._packages[step.package] = Package(self.bundle.path / step.package)
            package = self._packages[step.package]
            self._machines[key] = Machine(
                package, step.function, rounding=self.rounding, fractions=self.fractions
            )
        return self._machines[key]

    def run(
        self,
        step: Step,
        inputs: Mapping[str, Array],
        probes: Sequence[str],
        states: MutableMapping[str, torch.Tensor],
    ) -> dict[str, torch.Tensor]:
        """Compute a step; the states are replaced by what it leaves of them."""
        return self.machine(step).run(inputs, probes, states)


@define
class Interpreted:
    """A session of the interpreter; its states are tensors."""

    predictor: InterpreterPredictor
    _states: dict[tuple[str, str], torch.Tensor] = field(init=False, repr=False)

    def __attrs_post_init__(self) -> None:
        self._states = {
            (step.package, one.feature): torch.zeros(one.shape)
            for function in self.predictor.bundle.manifest.functions
            for step in function.steps
            for one in step.inputs
            if one.source.kind == "state"
        }

    def predict(
        self, step: Step, inputs: Mapping[str, Array], probes: Sequence[str]
    ) -> Mapping[str, Array]:
        """The step's output features and the probed values; a failing step changes no state."""
        states = {name: self._states[step.package, name] for name, _ in states_of(step)}
        found = self.predictor.run(step, inputs, probes, states)
        for name, value in states.items():
            self._states[step.package, name] = value
        return {name: value.numpy() for name, value in found.items()}

    def read_state(self, package: str, state: str) -> Array:
        """A copy of a state."""
        return self._states[package, state].numpy().copy()

    def write_state(self, package: str, state: str, value: Array) -> None:
        """Replace a state."""
        self._states[package, state] = torch.from_numpy(np.array(value, np.float32))


@define
class CoreMLPredictor:
    """Predicts with Core ML on macOS; written from coremltools' interface, run on no device yet."""

    bundle: Bundle
    wide: bool = field(default=False, init=False)
    _models: dict[tuple[str, str], Any] = field(factory=dict, init=False, repr=False)

    def __attrs_post_init__(self) -> None:
        if sys.platform != "darwin":
            message = f"Core ML runs on macOS, and this is {sys.platform}"
            place = Place(str(self.bundle.path))
            remedy = "use `--engine interpreter`"
            raise TopocError(error("run.no-core-ml", message, place, help=remedy))

    def begin(self) -> "CoreMLInstance":
        """A session's states; models serve all sessions."""
        return CoreMLInstance(self)

    def model(self, step: Step) -> Any:  # coremltools has no types
        """The loaded model of a step's function."""
        key = step.package, step.function
        if key not in self._models:
            import coremltools

            self._models[key] = coremltools.models.MLModel(
                str(self.bundle.path / step.package),
                compute_units=_compute_units(step, self.bundle),
                function_name=step.function,
            )
        return self._models[key]


@define
class CoreMLInstance:
    """A session of Core ML: one MLState a package, which all its functions share.

    It is made by the first function of the manifest that has states in the package.
    """

    predictor: CoreMLPredictor
    _states: dict[str, Any] = field(factory=dict, init=False, repr=False)  # MLState has no type

    def predict(
        self, step: Step, inputs: Mapping[str, Array], probes: Sequence[str]
    ) -> Mapping[str, Array]:
        """The step's output features; Core ML shows no value inside a package."""
        if probes:
            message = f"Core ML doesn't show `{probes[0]}` inside `{step.package}`"
            place = Place(str(self.predictor.bundle.path / step.package))
            remedy = "compile with `head(logits)`, or use `--engine interpreter`"
            raise TopocError(error("run.no-logits", message, place, help=remedy))
        model = self.predictor.model(step)
        if any(states_of(step)):
            found = model.predict(dict(inputs), state=self._state(step.package))
        else:
            found = model.predict(dict(inputs))
        return {one.feature: np.asarray(found[one.feature]) for one in step.outputs}

    def read_state(self, package: str, state: str) -> Array:
        """A copy of a state."""
        return np.array(self._state(package).read_state(state))

    def write_state(self, package: str, state: str, value: Array) -> None:
        """Replace a state."""
        self._state(package).write_state(state, np.ascontiguousarray(value))

    def _state(self, package: str) -> Any:
        if package not in self._states:
            steps = (s for one in self.predictor.bundle.manifest.functions for s in one.steps)
            first = next(s for s in steps if s.package == package and any(states_of(s)))
            self._states[package] = self.predictor.model(first).make_state()
        return self._states[package]


UNITS = {"all": "ALL", "cpu": "CPU_ONLY", "gpu": "CPU_AND_GPU", "ane": "CPU_AND_NE"}


def _compute_units(step: Step, bundle: Bundle) -> Any:  # coremltools has no types
    import coremltools

    if step.unit not in UNITS:
        message = f"`{step.package}` is for a unit `{step.unit}` that Core ML doesn't know"
        place = Place(str(bundle.path / step.package))
        raise TopocError(
            error("run.unknown-unit", message, place, help=f"name one of {', '.join(UNITS)}")
        )
    return getattr(coremltools.ComputeUnit, UNITS[step.unit])
