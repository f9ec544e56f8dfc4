"""A weight and its recipe to the constants that stand for it."""

from topoc.dsl.diagnostic import TopocError
from topoc.lowering.compress.importance import Importance
from topoc.lowering.compress.linear import quantise
from topoc.lowering.compress.misfits import Wanted, misfits
from topoc.lowering.compress.palettize import palettize
from topoc.lowering.compress.parts import Compressed
from topoc.lowering.compress.prune import prune
from topoc.lowering.compress.recipe import Linear, Palettize, Recipe
from topoc.lowering.compress.source import Source


def compress(
    source: Source,
    how: Recipe,
    importance: Importance | None = None,
    *,
    pad_groups: bool = False,
) -> Compressed:
    """The constants of a compressed weight.

    Raises `TopocError` for what `misfits` finds, and for values that fp16 does not hold.
    `importance` counts with palettize only: the other recipes choose nothing by error.
    """
    findings = tuple(misfits([Wanted(source.name, source.shape, how)], pad_groups=pad_groups))
    if findings:
        raise TopocError(*findings)
    if isinstance(how, Palettize):
        return palettize(source, how, importance)
    return quantise(source, how) if isinstance(how, Linear) else prune(source, how)
