"""Which matrix of a program is compressed how, by what a topology says of roles and layers."""

from collections.abc import Iterable, Mapping

from topoc.dsl.model import Scheme, Topology
from topoc.lowering.compress.recipe import Recipe, recipe
from topoc.lowering.ir import DType, Program, Weight
from topoc.lowering.ops.linear import Linear

PER_LAYER = frozenset({"ple_gate", "ple_projection"})
HEADS = frozenset({"head", "embed"})  # a tied head has the role of the table


def matrices(programs: Iterable[Program]) -> tuple[Weight, ...]:
    """The distinct weights of projections, in order of first use: all that is ever compressed.

    Gains, scalars, masks and tables are no weights of projections, whatever their size.
    """
    ops = (binding.op for program in programs for binding in program.bindings)
    return tuple(dict.fromkeys(op.weight for op in ops if isinstance(op, Linear)))


def recipes_of(
    topology: Topology, programs: Iterable[Program], dtype: DType
) -> Mapping[str, Recipe]:
    """The recipe of each matrix by its role, without those that stay as they are.

    A build in fp32 compresses nothing: it is there to be compared with a checkpoint.
    """
    if dtype is DType.FP32:
        return {}
    schemes = {(one.role, one.layer): one.schemes for one in topology.recipes}
    found = {}
    for weight in matrices(programs):
        how = _recipe(schemes, weight.role)
        if how is not None:
            found[weight.role] = how
    return found


def quantises_activations(topology: Topology, dtype: DType) -> bool:
    """Whether projections read what int8 keeps of their inputs; never in fp32, as above."""
    schemes = {one.name for one in topology.recipe("activations")}
    return dtype is not DType.FP32 and bool(schemes - {"none"})


def language_role(role: str) -> tuple[str, int | None]:
    """The language's role and layer of a matrix: `layers.3.q` is q of layer 3."""
    if role.startswith("layers."):
        _, layer, part = role.split(".")
        return "ple" if part in PER_LAYER else part, int(layer)
    return ("head" if role in HEADS else role.partition(".")[0]), None


def _recipe(
    schemes: Mapping[tuple[str, int | None], tuple[Scheme, ...]], role: str
) -> Recipe | None:
    return recipe(schemes[language_role(role)])
