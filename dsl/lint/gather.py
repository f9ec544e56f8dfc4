"""One finding for one cause: layers or tensors that the same rule set the same way."""

from collections.abc import Iterable, Iterator

from topoc.dsl.lint.subject import Subject
from topoc.dsl.model import Block, Recipe
from topoc.dsl.resolve.selector import listed
from topoc.dsl.source import Span


def by_rule(
    subject: Subject, faulty: Iterable[tuple[Block, int]], *, clause: str = "source"
) -> Iterator[tuple[Span, int, list[int]]]:
    """Faulty blocks by the rule that set a clause and by donor: its place, the donor, the layers.

    Where the checkpoint decides, no rule can be shown and all such layers belong together.
    """
    groups: dict[tuple[Span | None, int], list[Block]] = {}
    for block, donor in faulty:
        groups.setdefault((block.kv.at(clause), donor), []).append(block)
    for (_, donor), blocks in groups.items():
        yield subject.at(blocks[0], clause), donor, [block.index for block in blocks]


def by_recipe(subject: Subject, faulty: Iterable[Recipe]) -> Iterator[tuple[Span, str]]:
    """Faulty recipes by the rule that set them: its place, and the tensors in short."""
    groups: dict[Span | None, list[Recipe]] = {}
    for recipe in faulty:
        groups.setdefault(recipe.span, []).append(recipe)
    for span, recipes in groups.items():
        roles = list(dict.fromkeys(recipe.role for recipe in recipes))
        layers = sorted({recipe.layer for recipe in recipes if recipe.layer is not None})
        named = ", ".join(roles[:_SHOWN]) + (", …" if len(roles) > _SHOWN else "")
        yield span or subject.whole, f"{named} of {listed(layers)}" if layers else named


_SHOWN = 3
