"""Whether the packages of a bundle are of its build, and take and give what its steps say."""

from collections.abc import Iterator, Sequence

from attrs import evolve, frozen

from topoc.dsl.diagnostic import Diagnostic, Place, TopocError, error
from topoc.lowering.bundle.bundle import REMEDY, Bundle
from topoc.lowering.interpret.function import Feature, Function
from topoc.lowering.interpret.package import Package
from topoc.lowering.manifest import Input, Output, Step

BUILD = "topoc.build"  # the key of a package's metadata
SHOWN = 12  # digits of a build are enough to tell two apart


def packages(bundle: Bundle, sound: frozenset[str]) -> Iterator[Diagnostic]:
    """What is wrong with the packages themselves, then where a step and its function differ."""
    used = {step.package: None for one in bundle.manifest.functions for step in one.steps}
    opened: dict[str, Package] = {}
    for path in used:
        if path not in sound:
            continue
        try:
            opened[path] = Package(bundle.path / path)
        except TopocError as failure:
            yield from (evolve(one, help=one.help or REMEDY) for one in failure.findings)
        except (OSError, ValueError, RuntimeError) as failure:  # odd paths in its own manifest
            message = f"`{path}` can't be read as a package ({type(failure).__name__})"
            place = Place(str(bundle.path / path))
            yield error("bundle.unreadable-package", message, place, help=REMEDY)
        else:
            yield from _build(bundle, path, opened[path])
    for i, function in enumerate(bundle.manifest.functions):
        for j, step in enumerate(function.steps):
            if step.package in opened:
                place = Place(bundle.manifest_path, f"$.functions[{i}].steps[{j}]")
                yield from _step(step, opened[step.package], place)


def _build(bundle: Bundle, path: str, package: Package) -> Iterator[Diagnostic]:
    """Chunks of two compiles may fit in shape and still be of different weights or plans."""
    found, wanted = package.metadata.get(BUILD), bundle.manifest.build
    if found == wanted:
        return
    whose = "does not tell its build" if found is None else f"is of build {found[:SHOWN]}"
    message = f"`{path}` {whose}, and the bundle is of build {wanted[:SHOWN]}"
    yield error("bundle.mixed-builds", message, Place(str(bundle.path / path)), help=REMEDY)


def _step(step: Step, package: Package, place: Place) -> Iterator[Diagnostic]:
    """The function of a step has its features, in name, shape and element type, and no others."""
    function = package.functions.get(step.function)
    if function is None:
        message = f"`{step.package}` has no function `{step.function}`"
        at = evolve(place, part=f"{place.part}.function")
        yield error("bundle.feature", message, at, help=REMEDY)
        return
    fed = [one for one in step.inputs if one.source.kind != "state"]
    held = [one for one in step.inputs if one.source.kind == "state"]
    yield from _Side("input", function.inputs, fed, step.inputs).against(step.package, place)
    yield from _Side("state", function.states, held, step.inputs).against(step.package, place)
    outputs = _Side("output", function.outputs, step.outputs, step.outputs)
    yield from outputs.against(step.package, place)
    yield from _probes(step, function, place)


@frozen
class _Side:
    """What a function takes, holds or gives, and what the manifest says of it."""

    kind: str
    declared: Sequence[Feature]
    listed: Sequence[Input | Output]
    among: Sequence[Input | Output]  # the manifest's list that holds them

    def against(self, package: str, place: Place) -> Iterator[Diagnostic]:
        """Every feature that only one of the two has, or that both have otherwise."""
        left = {one.name: one for one in self.declared}
        part = f"{place.part}.{'outputs' if self.kind == 'output' else 'inputs'}"
        for one in self.listed:
            found = left.pop(one.feature, None)
            at = evolve(place, part=f"{part}[{self.among.index(one)}]")
            if found is None:
                message = f"`{package}` has no {self.kind} `{one.feature}`"
                yield error("bundle.feature", message, at, help=REMEDY)
            elif (found.shape, found.dtype) != (one.shape, one.dtype):
                message = f"`{one.feature}` is {found} in `{package}`, not {one.dtype} {one.shape}"
                yield error("bundle.feature", message, at, help=REMEDY)
        for name in left:
            message = f"`{package}` has the {self.kind} `{name}`, which the manifest does not list"
            yield error("bundle.feature", message, evolve(place, part=part), help=REMEDY)


def _probes(step: Step, function: Function, place: Place) -> Iterator[Diagnostic]:
    """A value that is looked at inside the function is there."""
    made = {one.name for op in function.ops for one in op.outputs}
    for k, one in enumerate(step.outputs):
        if one.sink.probe is not None and one.sink.probe not in made:
            message = f"`{step.package}` has no value `{one.sink.probe}` to look at"
            at = evolve(place, part=f"{place.part}.outputs[{k}].sink.probe")
            yield error("bundle.feature", message, at, help=REMEDY)
