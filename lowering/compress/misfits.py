"""Weights that can't have their recipe, told by shapes alone."""

from collections.abc import Iterable, Iterator

from attrs import frozen

from topoc.dsl.diagnostic import Diagnostic, Place, error
from topoc.lowering.compress.recipe import Linear, Palettize, Prune, Recipe

SHOWN = 4  # names in one message


@frozen
class Wanted:
    """A weight by its name and shape, and what is to be done to it."""

    name: str
    shape: tuple[int, ...]
    recipe: Recipe


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
        pruned = isinstance(one.recipe, Prune)
        if pad_groups and not pruned:
            return None
        words = f"the outputs do not divide into groups of {how.group}"
        ways = "`per_tensor`" if pruned else "`per_tensor`, or --pad-groups"
        way = f"choose a group that divides them, {'or ' * pruned}{ways}"
        return "quant.ragged-group", words, way
    return None
