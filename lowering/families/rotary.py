"""The rotary embedding as configs spell it: three generations that must not contradict."""

from attrs import frozen

from topoc.dsl.plain import Plain
from topoc.lowering.families.config import Fields
from topoc.lowering.jsonfile import named

PLAIN = "default"
LINEAR = "linear"


@frozen(eq=False, repr=False)
class Spelling(Plain):
    """Where a config keeps the rotary embedding of one attention kind, and its default base."""

    entry: str  # in `rope_parameters`
    theta: str  # at the top level
    scaling: str | None  # at the top level; `rope_scaling` is about full attention only
    default: float


def rotary(text: Fields, parameters: Fields, spelling: Spelling) -> tuple[float, float]:
    """The base and the factor that positions are divided by, from every place that gives one."""
    entry = parameters.within(spelling.entry)
    scaling = text.within(spelling.scaling) if spelling.scaling else None
    sources = [one for one in (entry, scaling) if one is not None]
    thetas = [(one, "rope_theta") for one in sources if one.has("rope_theta")]
    text.taken.add(spelling.theta)
    if text.has(spelling.theta):
        thetas.append((text, spelling.theta))
    factors = [(one, _factor(one)) for one in sources if _speaks(one)]
    for one in sources:
        one.taken.add("rope_theta")
        one.neutral([("partial_rotary_factor", (1,))])
        one.finish(frozenset({"original_max_position_embeddings"}))
    theta = _one(text, spelling.theta, [(place, place.number(name, 1.0)) for place, name in thetas])
    factor = _one(text, spelling.scaling or spelling.entry, factors)
    if theta is None:
        note = f"the config gives no `{spelling.theta}`, and the family's is {spelling.default:.0f}"
        text.notices.append(note)
    return spelling.default if theta is None else theta, 1.0 if factor is None else factor


def _speaks(one: Fields) -> bool:
    return any(one.has(name) for name in ("rope_type", "type", "factor"))


def _factor(one: Fields) -> float:
    """The factor of one scaling object; its type has an old and a new key."""
    names = {str(one.text(name, "")) for name in ("rope_type", "type") if one.has(name)}
    one.taken |= {"rope_type", "type"}
    if len(names) > 1:
        found = "`rope_type` and `type` name different kinds"
        one.refuse("type", found, code="model.contradictory")
    kind = names.pop() if names else PLAIN
    if kind not in {PLAIN, LINEAR}:
        found = f"rope type `{kind[:40]}` has no lowering"
        one.refuse("rope_type", found, code="model.not-lowered", way=f"use `{PLAIN}` or `{LINEAR}`")
    if kind == LINEAR and not one.has("factor"):
        one.refuse("factor", "rope type `linear` has no factor")
    factor = one.optional_number("factor")
    if kind == PLAIN and factor not in {None, 1.0}:
        found = f"`factor` is {named(one.values['factor'])} and rope type `{PLAIN}` uses none"
        one.refuse("factor", found, code="model.contradictory")
    return factor or 1.0


def _one(text: Fields, name: str, found: list[tuple[Fields, float]]) -> float | None:
    """The value on which all places agree."""
    if not found:
        return None
    first, value = found[0]
    for place, other in found[1:]:
        if other != value:
            message = (
                f"`{place.path}{name}` says {other:g} and `{first.path or name}` says {value:g}"
            )
            text.refuse(name, message, code="model.contradictory", way="keep the one that holds")
    return value
