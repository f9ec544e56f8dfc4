"""The rules on checkpoints, asked of weights that are to be compressed, and of those that were."""

from collections.abc import Iterable, Iterator, Mapping

from attrs import evolve

from topoc.dsl.diagnostic import Diagnostic, Severity
from topoc.dsl.lint.checkpoint import Checkpoint, Tensor
from topoc.dsl.lint.engine import Options, Subjects, examine
from topoc.dsl.model import Topology
from topoc.dsl.source import Span
from topoc.lowering import manifest
from topoc.lowering.architecture import Architecture
from topoc.lowering.compress.misfits import Wanted
from topoc.lowering.compress.recipe import Linear, Palettize, Prune, Recipe
from topoc.lowering.quantization import scheme
from topoc.lowering.recipes import language_role

LOW_SQNR = "quant.low-sqnr"
INDIVISIBLE = "quant.indivisible-group"

Spans = Mapping[tuple[str, int | None], Span | None]
"""The line of the topology that chose a role's scheme in a layer."""


def tensors(
    architecture: Architecture,
    quantization: manifest.Quantization | None,
    topology: Topology | None = None,
) -> Iterator[Tensor]:
    """The compressed weights as rules see them, each at the line of the topology that chose it."""
    shapes = {one.role: one.shape for one in architecture.tensors}
    spans = _spans(topology)
    for one in () if quantization is None else quantization.tensors:
        yield Tensor(
            name=one.weight,
            shape=shapes[_role(one.weight)],
            scheme=one.scheme,
            sqnr=one.sqnr,
            span=spans.get((one.role, one.layer)),
        )


def low_sqnr(
    path: str,
    architecture: Architecture,
    quantization: manifest.Quantization | None,
    topology: Topology | None = None,
) -> tuple[Diagnostic, ...]:
    """A warning for each weight that kept too little; `path` is how people know the checkpoint."""
    found = tuple(tensors(architecture, quantization, topology))
    subjects = Subjects(checkpoint=Checkpoint(path=path, tensors=found))
    return examine(subjects, Options(select=(LOW_SQNR,))).findings


def indivisible(
    path: str, topology: Topology, wanted: Mapping[str, Wanted], *, pad_groups: bool
) -> tuple[Diagnostic, ...]:
    """An error for each weight, by its role and rows, whose groups or blocks do not come out even.

    Where groups are padded, those of palettes do.
    """
    spans = _spans(topology)
    found = tuple(
        Tensor(
            name=one.name,
            shape=one.shape,
            scheme=scheme(one.recipe),
            group=group,
            axis=axis,
            span=spans.get(language_role(_role(key))),
        )
        for key, one in wanted.items()
        for group, axis in _groups(one.recipe, pad_groups=pad_groups)
    )
    subjects = Subjects(checkpoint=Checkpoint(path=path, tensors=found))
    return examine(subjects, Options(select=(INDIVISIBLE,))).findings


def _groups(how: Recipe, *, pad_groups: bool) -> Iterable[tuple[int, int]]:
    """What shares a palette or a scale, and the axis that it stands over."""
    if isinstance(how, Linear):
        return [(how.block, 1)] if how.per == "block" else []
    palette = how.then if isinstance(how, Prune) else how
    padded = pad_groups and isinstance(how, Palettize)
    return [(palette.group, 0)] if palette and palette.group and not padded else []


def _spans(topology: Topology | None) -> Spans:
    rules = () if topology is None else topology.recipes
    return {(one.role, one.layer): one.span for one in rules}


def _role(key: str) -> str:
    """The role of a weight: its key tells rows and factors too."""
    return key.partition(" ")[0].partition("[")[0]


def tensors_checked(lint: manifest.Lint, findings: tuple[Diagnostic, ...]) -> manifest.Lint:
    """What the rules said, with those on compressed weights: all of them warn."""
    allowed = {one.code for one in lint.allowed}
    found = (one for one in findings if one.code not in allowed)
    warned = {one.code for one in found if one.severity is Severity.WARNING}
    return evolve(
        lint,
        ran=tuple(sorted({*lint.ran, LOW_SQNR})),
        warned=tuple(sorted({*lint.warned, *warned})),
    )
