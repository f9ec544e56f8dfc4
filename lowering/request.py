"""What a compile is asked for, and whether its recipes fit the weights."""

from attrs import field, frozen

from topoc.dsl.diagnostic import Place, TopocError
from topoc.dsl.model import Topology
from topoc.dsl.source import Span
from topoc.lowering import manifest
from topoc.lowering.architecture import Architecture
from topoc.lowering.calibration import check_use
from topoc.lowering.checkpoint.reader import Reader
from topoc.lowering.checkpoint.weights import Weights
from topoc.lowering.compress.cache import Cache
from topoc.lowering.compress.misfits import Wanted, misfits
from topoc.lowering.emissions import Emissions
from topoc.lowering.ir import DType, Weight
from topoc.lowering.lint.tensors import indivisible
from topoc.lowering.plan import Plan
from topoc.lowering.recipes import matrices, quantises_activations


@frozen(kw_only=True)
class Request:
    """What to compile, and how."""

    topology: Topology
    architecture: Architecture
    reader: Reader
    precision: DType = DType.FP16
    rescale: bool = True  # off only to show what the pass is for
    only_chunk: str | None = None  # rebuild this package, keep the others of the same build
    jobs: int = 1  # processes that write packages; the bytes don't depend on it
    lint: manifest.Lint = field(factory=manifest.Lint)  # what rules said of text and programs
    revisit: str | None = None
    pad_groups: bool = False  # a ragged last group gets more rows, which are cut off behind
    cache: Cache | None = None  # of compressed weights; without one they are made anew
    calibrate: str | None = None  # a text that says which inputs of projections are large, and how
    error_feedback: bool = False  # columns make up for the error of others, by that text
    emissions: Emissions = field(factory=Emissions, eq=False, repr=False)  # those that rules saw


def check_recipes(request: Request, laid: Plan, weights: Weights) -> None:
    """Refuse what does not fit the recipes, before anything is made.

    Groups and blocks must divide their weight, and a text or error feedback change something. A
    rule tells of the former at its line; who allows that is told by the compiler all the same.
    """
    recipes = [how for one in laid.packages for how in one.recipes.values()]
    text = request.calibrate is not None
    check_use(
        recipes,
        text=text,
        feedback=request.error_feedback,
        activations=_activations(request),
    )
    wanted = {
        weight.key: Wanted(_named(weights, weight), weight.type.shape, package.recipes[weight.role])
        for package in laid.packages
        for weight in matrices(package.programs)
        if weight.role in package.recipes
    }
    file, padded = str(weights.reader.path), request.pad_groups
    found = indivisible(file, request.topology, wanted, pad_groups=padded)
    if {one.code for one in found} & {one.code for one in request.lint.allowed}:
        found = ()
    found = found or tuple(misfits(wanted.values(), pad_groups=padded, file=file))
    if found:
        raise TopocError(*found)


def _activations(request: Request) -> Place | Span | None:
    """Where the topology asks for quantised activations, if the build has them."""
    topology = request.topology
    if not quantises_activations(topology, request.precision):
        return None
    spans = {one.role: one.span for one in topology.recipes}
    return spans["activations"] or topology.span or Place(topology.name)


def _named(weights: Weights, weight: Weight) -> str:
    """A weight as the checkpoint calls it, with the rows that it is."""
    name, first = weights.names[weight.role], weight.first
    return name if first is None else f"{name}[{first}:{first + weight.type.shape[0]}]"
