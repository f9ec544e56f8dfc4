"""The MIL that a topology becomes, with constants that have shapes and no values."""

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from attrs import evolve, field, frozen

from topoc.dsl.diagnostic import Diagnostic, Label, Place, TopocError
from topoc.dsl.lint.subject import Mil
from topoc.dsl.model import Target, Topology
from topoc.dsl.plain import Plain
from topoc.dsl.source import Span
from topoc.lowering.plan import PackagePlan, Plan

if TYPE_CHECKING:
    from topoc.lowering.emissions import Emissions
    from topoc.lowering.emit.mil.var import Placed

Spans = Mapping[str, Span]
"""Where the text asks for a value, by the value's name."""


@frozen(eq=False, repr=False)
class Emitted(Plain):
    """One package as rules look at it, and the way back into the text."""

    subject: Mil
    whole: Span | None
    spans: Mapping[str, Spans] = field(factory=dict)  # by function

    def point(self, finding: Diagnostic) -> Diagnostic:
        """The finding at the line that asks for the op; its place in MIL stands beside it."""
        at = finding.at.at
        if not isinstance(at, Place) or at.file != self.subject.package.path:
            return finding
        span = self._span(at.part)
        if span is None:
            return finding
        related = (Label(at, finding.at.words or "in MIL"),)
        return evolve(finding, at=Label(span, "asks for it"), related=related)

    def _span(self, part: str) -> Span | None:
        """The span of the value that an op belongs to: ops are called VALUE or VALUE_PART."""
        function, _, name = part.partition("/")
        spans = self.spans.get(function, {})
        while name and name not in spans:
            name = name.rpartition("_")[0]
        return spans.get(name, self.whole)


def emitted(topology: Topology, emissions: "Emissions | None" = None) -> tuple[Emitted, ...]:
    """The packages of a topology; what is emitted may be of use to who asks.

    Raises TopocError for what has no lowering yet, for a config that can't be read, and for
    weights that a scheme does not fit, however their last group is filled up.
    """
    from topoc.lowering.architecture import read
    from topoc.lowering.emissions import Emissions
    from topoc.lowering.emit.mil.templates import Templates
    from topoc.lowering.kept import Kept
    from topoc.lowering.plan import plan
    from topoc.lowering.refuse import refusals

    refused = tuple(refusals(topology))
    if refused:
        raise TopocError(*refused)
    laid = plan(topology, read(topology.layers.config))
    misfit = tuple(_misfits(laid))
    if misfit:
        raise TopocError(*misfit)
    made = emissions or Emissions(Templates(Kept()))
    return tuple(_emitted(laid, package, made) for package in laid.packages)


def _misfits(laid: Plan) -> Iterator[Diagnostic]:
    """Weights whose constants no op would take, by the names that programs have for them."""
    from topoc.lowering.compress.misfits import Wanted, misfits
    from topoc.lowering.recipes import matrices

    weights = (
        Wanted(weight.key, weight.type.shape, package.recipes[weight.role])
        for package in laid.packages
        for weight in matrices(package.programs)
        if weight.role in package.recipes
    )
    return misfits(weights, pad_groups=True, file=laid.topology.name)


def _emitted(laid: Plan, package: PackagePlan, emissions: "Emissions") -> Emitted:
    from topoc.lowering.coreml_proto import messages
    from topoc.lowering.lint.views import view

    model = messages().Model()
    emission = emissions.of(package.programs, laid.dtype, package.recipes)
    model.ParseFromString(emission.serialised(_ones, {}))
    topology, chunk = laid.topology, package.chunk
    target = _target(topology, package)
    return Emitted(
        Mil(view(package.path, model), target, chunk.name),
        chunk.span or topology.span,
        {one.name: dict(_spans(one.bindings)) for one in package.programs},
    )


def _target(topology: Topology, package: PackagePlan) -> Target:
    """The unit that the chunk's functions run on; the Neural Engine if some of them may."""
    functions = [one for one in topology.functions if package.chunk in topology.chunks_of(one)]
    units = [package.chunk.unit or one.unit or topology.target.unit for one in functions]
    meant = next((one for one in units if one in {"ane", "all"}), units[0])
    return evolve(topology.target, unit=meant)


def _spans(bindings: tuple[Any, ...]) -> Iterator[tuple[str, Span]]:
    for binding in bindings:
        if binding.span is not None:
            yield from ((value.name, binding.span) for value in binding.results)


def _ones(placed: "Placed") -> Any:
    """Ones for a tensor of a few elements, which stands in the program itself."""
    import numpy as np

    from topoc.lowering.compress.layout import constants
    from topoc.lowering.emit.mil.var import NUMPY, stored_shape

    weight = placed.weight
    if placed.recipe is None:
        return np.ones(stored_shape(weight.type.shape, placed.layout), NUMPY[weight.type.dtype])
    dtype, shape = constants(placed.recipe, weight.type.shape)[placed.part]
    return np.ones(shape, np.float16 if dtype == "fp16" else np.uint8)
