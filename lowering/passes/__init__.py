"""Program to program: every pass, in the order in which they run, with the reason for its place."""

from typing import TYPE_CHECKING

from topoc.lowering.ir import Program
from topoc.lowering.passes.fold_query_scale import FoldQueryScale
from topoc.lowering.passes.lift_branches import LiftBranches
from topoc.lowering.passes.quantize_activations import QuantizeActivations
from topoc.lowering.passes.remove_dead_ops import RemoveDeadOps
from topoc.lowering.passes.rescale_residual import RescaleResidual
from topoc.lowering.passes.rewrite import Pass
from topoc.lowering.verify import verify

if TYPE_CHECKING:
    from topoc.lowering.rescale import Scales

DEFAULT: tuple[Pass, ...] = (
    FoldQueryScale(),  # first: it looks for the builder's own shape around the query
    QuantizeActivations(),  # if asked for; the rescale brings scales to the stream's power of two
    RescaleResidual(),  # its scales are measured on the checkpoint; without any it does nothing
    LiftBranches(),  # likewise; after the rescale, which looks for the branches' own norms
    RemoveDeadOps(),  # last: whatever the others left unread goes, inputs too
)


def pipeline(scales: "Scales | None" = None, *, activations: bool = False) -> tuple[Pass, ...]:
    """The passes, with the scales that a checkpoint asks for, and what a topology does."""
    if scales is None and not activations:
        return DEFAULT
    told: dict[type[Pass], Pass] = {QuantizeActivations: QuantizeActivations(activations)}
    if scales is not None:
        told[RescaleResidual] = RescaleResidual(scales.residual)
        told[LiftBranches] = LiftBranches(scales.branches)
    return tuple(told.get(type(one), one) for one in DEFAULT)


def run(passes: tuple[Pass, ...], program: Program) -> Program:
    """The program after every pass, verified wherever one changed it, and once at least."""
    built = program
    for one in passes:
        before, program = program, one.run(program)
        if program is not before:
            verify(program)
    if program is built:
        verify(program)
    return program


__all__ = ["DEFAULT", "Pass", "pipeline", "run"]
