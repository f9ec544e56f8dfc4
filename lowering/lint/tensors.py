"""The rules on checkpoints, asked of weights that were just compressed."""

from collections.abc import Iterator

from attrs import evolve

from topoc.dsl.diagnostic import Diagnostic, Severity
from topoc.dsl.lint.checkpoint import Checkpoint, Tensor
from topoc.dsl.lint.engine import Options, Subjects, examine
from topoc.dsl.model import Topology
from topoc.lowering import manifest
from topoc.lowering.architecture import Architecture

LOW_SQNR = "quant.low-sqnr"


def tensors(
    architecture: Architecture,
    quantization: manifest.Quantization | None,
    topology: Topology | None = None,
) -> Iterator[Tensor]:
    """The compressed weights as rules see them, each at the line of the topology that chose it."""
    shapes = {one.role: one.shape for one in architecture.tensors}
    rules = () if topology is None else topology.recipes
    spans = {(one.role, one.layer): one.span for one in rules}
    for one in () if quantization is None else quantization.tensors:
        role = one.weight.partition(" ")[0].partition("[")[0]
        yield Tensor(
            name=one.weight,
            shape=shapes[role],
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
