"""A weight and its recipe to the constants that stand for it."""

from collections.abc import Iterable, Iterator

from attrs import frozen

from topoc.dsl.diagnostic import Diagnostic, Place, TopocError, error
from topoc.lowering.compress.importance import Importance
from topoc.lowering.compress.linear import quantise
from topoc.lowering.compress.palettize import palettize
from topoc.lowering.compress.parts import Compressed
from topoc.lowering.compress.prune import prune
from topoc.lowering.compress.recipe import Linear, Palettize, Prune, Recipe
from topoc.lowering.compress.source import Source

SHOWN = 4  # names in one message


@frozen
class Wanted:
    """A weight by its name and shape, and what is to be done to it."""

    name: str
    shape: tuple[int, ...]
    recipe: Recipe


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


def misfits(
    wanted: Iterable[Wanted], *, pad_groups: bool = False, file: str = ""
) -> Iterator[Diagnostic]:
    """Weights that can't have their recipe: one finding a recipe and reason, with their names."""
    found: dict[tuple[str, str, str], list[Wanted]] = {}
    for one in wanted:
        reason = _misfit(one, pad_groups=pad_groups)
        if reason is not None:
            found.setdefault(reason, []).append(one)
    for (code, words, help_), those in found.items():
        names = [f"`{one.name}` {list(one.shape)}" for one in those[:SHOWN]]
        more = f" and {len(those) - SHOWN} more" if len(those) > SHOWN else ""
        message = f"{words}: {', '.join(names)}{more}"
        yield error(code, message, Place(file or those[0].name), help=help_)


def _misfit(one: Wanted, *, pad_groups: bool) -> tuple[str, str, str] | None:
    """The code, message and help of what is wrong."""
    if len(one.shape) != 2:
        words = "only matrices are compressed, and gains are none"
        return "quant.not-a-matrix", words, "leave it out of the rule, or write `none` for it"
    rows, columns = one.shape
    how = one.recipe.then if isinstance(one.recipe, Prune) else one.recipe
    if isinstance(one.recipe, Prune) and columns % one.recipe.m:
        words = f"the inputs do not divide by {one.recipe.m}"
        return "quant.ragged-group", words, "prune by a number that divides them"
    if isinstance(how, Linear) and how.per == "block" and columns % how.block:
        words = f"the inputs do not divide into blocks of {how.block}"
        return "quant.ragged-group", words, "choose a block that divides them"
    if isinstance(how, Palettize) and how.group and rows % how.group:
        if pad_groups and not isinstance(one.recipe, Prune):
            return None
        words = f"the outputs do not divide into groups of {how.group}"
        way = "choose a group that divides them, `per_tensor`, or --pad-groups"
        return "quant.ragged-group", words, way
    return None
