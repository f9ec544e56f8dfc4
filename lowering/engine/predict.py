"""What computes a step: the interpreter on any system, or Core ML on a Mac."""

import sys
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from attrs import define, field

from topoc.dsl.diagnostic import Place, TopocError, error
from topoc.lowering.bundle.reader import Bundle
from topoc.lowering.engine.positions import Array
from topoc.lowering.interpret.machine import Machine
from topoc.lowering.interpret.package import Package
from topoc.lowering.manifest import Step


@define
class InterpreterPredictor:
    """Interprets the saved packages, in fp32 or rounding to fp16 after each op.

    A package is opened once, and a function of it becomes a machine when it is first called.
    """

    bundle: Bundle
    rounding: bool = False
    _packages: dict[str, Package] = field(factory=dict, init=False, repr=False)
    _machines: dict[tuple[str, str], Machine] = field(factory=dict, init=False, repr=False)

    @property
    def wide(self) -> bool:
        """Without rounding, what fp16 features carry is fp32."""
        return not self.rounding

    def predict(
        self, step: Step, inputs: Mapping[str, Array], probes: Sequence[str]
    ) -> Mapping[str, Array]:
        """The step's output features and the probed values."""
        found = self._machine(step).run(inputs, probes)
        return {name: value.numpy() for name, value in found.items()}

    def _machine(self, step: Step) -> Machine:
        key = step.package, step.function
        if key not in self._machines:
            if step.package not in self._packages:
                self._packages[step.package] = Package(self.bundle.path / step.package)
            package = self._packages[step.package]
            self._machines[key] = Machine(package, step.function, rounding=self.rounding)
        return self._machines[key]


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

    def predict(
        self, step: Step, inputs: Mapping[str, Array], probes: Sequence[str]
    ) -> Mapping[str, Array]:
        """The step's output features; Core ML shows no value inside a package."""
        if probes:
            message = f"Core ML doesn't show `{probes[0]}` inside `{step.package}`"
            place = Place(str(self.bundle.path / step.package))
            remedy = "compile with `head(logits)`, or use `--engine interpreter`"
            raise TopocError(error("run.no-logits", message, place, help=remedy))
        found = self._model(step).predict(dict(inputs))
        return {one.feature: np.asarray(found[one.feature]) for one in step.outputs}

    def _model(self, step: Step) -> Any:  # coremltools has no types
        key = step.package, step.function
        if key not in self._models:
            import coremltools

            self._models[key] = coremltools.models.MLModel(
                str(self.bundle.path / step.package),
                compute_units=_compute_units(step, self.bundle),
                function_name=step.function,
            )
        return self._models[key]


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
