"""The attention kind of each layer, and the window of those that have one."""

from topoc.dsl.model import Kind
from topoc.lowering.families.config import Fields
from topoc.lowering.jsonfile import named

MOST_LAYERS = 4096

KINDS = {
    "sliding_attention": Kind.SLIDING,
    "full_attention": Kind.FULL,
    "attention": Kind.FULL,
}


def listed(text: Fields, count: int) -> tuple[Kind, ...] | None:
    """The kinds that `layer_types` lists; None where the config leaves them to the family."""
    text.taken.add("layer_types")
    names = text.values.get("layer_types")
    if names is None:
        return None
    if not isinstance(names, list):
        text.refuse("layer_types", f"`layer_types` is {named(names)} and not a list")
        return (Kind.FULL,) * count
    if len(names) != count:
        found = f"`layer_types` names {len(names)} layers and `num_hidden_layers` is {count}"
        text.refuse("layer_types", found)
    for index, name in enumerate(names):
        if not isinstance(name, str) or name not in KINDS:
            found = f"layer {index}: {named(name)} has no lowering"
            text.refuse("layer_types", found, code="model.not-lowered")
    return tuple(KINDS.get(str(name), Kind.FULL) for name in names)


def every(period: int, count: int) -> tuple[Kind, ...]:
    """Each layer sliding but for every `period`-th one."""
    return tuple(Kind.SLIDING if (index + 1) % period else Kind.FULL for index in range(count))


def window(text: Fields, kinds: tuple[Kind, ...], default: int) -> int | None:
    """How many positions a sliding layer sees, its own included."""
    if text.values.get("sliding_window", 0) is not None:
        return text.count("sliding_window", default)
    text.taken.add("sliding_window")
    if Kind.SLIDING in kinds:
        found = f"`sliding_window` is null and layer {kinds.index(Kind.SLIDING)} is sliding"
        text.refuse("sliding_window", found)
    return None
