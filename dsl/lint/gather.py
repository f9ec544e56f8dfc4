"""One finding for one cause: layers or tensors that the same rule set the same way."""

from collections.abc import Callable, Iterable, Iterator

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


def by_window(
    subject: Subject, differs: Callable[[int, int], bool]
) -> Iterator[tuple[Span, int, str]]:
    """Layers that see another number of positions than the checkpoint's, by what chose it.

    `differs` compares how many a layer sees with how many it was trained to see, both within the
    context. Each place comes with the lesser number, up to which nothing changes, and its layers.
    """
    context = subject.topology.context
    groups: dict[tuple[Span, int], list[int]] = {}
    for block in subject.topology.blocks:
        sees = min(block.attention.window or context, context)
        trained = min(subject.layer(block.index).window or context, context)
        if differs(sees, trained):
            span = block.attention.span or subject.whole
            groups.setdefault((span, min(sees, trained)), []).append(block.index)
    for (span, window), layers in groups.items():
        yield span, window, listed(layers)


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
