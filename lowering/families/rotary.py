"""The rotary embedding as configs spell it: three generations that must not contradict."""

from attrs import frozen

from topoc.dsl.plain import Plain
from topoc.lowering.architecture import Rope
from topoc.lowering.families.config import Fields
from topoc.lowering.jsonfile import named

PLAIN = "default"
LINEAR = "linear"
PROPORTIONAL = "proportional"
SHARE = "partial_rotary_factor"
UNUSED = frozenset({"original_max_position_embeddings"})


@frozen(eq=False, repr=False)
class Spelling(Plain):
    """Where a config keeps the rotary embedding of one attention kind, and its default base."""

    entry: str  # in `rope_parameters`
    theta: str  # at the top level
    scaling: str | None  # at the top level; `rope_scaling` is about full attention only
    default: float


def rotary(text: Fields, parameters: Fields, spelling: Spelling, width: int) -> Rope:
    """The base and the factor that positions are divided by, from every place that gives one."""
    entry = parameters.within(spelling.entry)
    scaling = text.within(spelling.scaling) if spelling.scaling else None
    sources = [one for one in (entry, scaling) if one is not None]
    thetas = [(one, "rope_theta") for one in sources if one.has("rope_theta")]
    text.taken.add(spelling.theta)
    if text.has(spelling.theta):
        thetas.append((text, spelling.theta))
    factors = [(one, _factor(one, _kind(one, (PLAIN, LINEAR)))) for one in sources if _speaks(one)]
    for one in sources:
        one.taken.add("rope_theta")
        one.neutral([(SHARE, (1,))])
        one.finish(UNUSED)
    theta = _one(text, spelling.theta, [(place, place.number(name, 1.0)) for place, name in thetas])
    factor = _one(text, spelling.scaling or spelling.entry, factors)
    if theta is None:
        note = f"the config gives no `{spelling.theta}`, and the family's is {spelling.default:.0f}"
        text.notices.append(note)
        theta = spelling.default
    return Rope(theta=theta, width=width, factor=1.0 if factor is None else factor)


def stated(parameters: Fields, entry: str, width: int) -> Rope:
    """The embedding of a kind that nothing but its entry in `rope_parameters` may tell.

    The proportional kind keeps the exponents of the whole width, and lets only the first pairs
    turn: `partial_rotary_factor` of the width, rounded down to whole pairs, all where it is absent.
    """
    one = parameters.within(entry)
    kind = _kind(one, (PLAIN, LINEAR, PROPORTIONAL))
    factor = _factor(one, kind)
    if not one.has("rope_theta"):
        parameters.refuse(entry, f"`rope_parameters` gives no base for `{entry}`")
    theta = one.number("rope_theta", 1.0) if one.has("rope_theta") else 1.0
    share = 1.0
    if kind == PROPORTIONAL and one.has(SHARE):
        share = one.number(SHARE, 1.0)
        if share > 1.0:
            one.refuse(SHARE, f"`{SHARE}` is {share:g}, more than the whole head")
    one.neutral([(SHARE, (1, share))])
    one.finish(UNUSED)
    turning = int(share * width // 2)
    return Rope(
        theta=theta,
        width=width,
        factor=factor,
        turning=None if turning >= width // 2 else turning,
    )


def _speaks(one: Fields) -> bool:
    return any(one.has(name) for name in ("rope_type", "type", "factor"))


def _kind(one: Fields, known: tuple[str, ...]) -> str:
    """The type that one object names; it has an old and a new key."""
    names = {str(one.text(name, "")) for name in ("rope_type", "type") if one.has(name)}
    one.taken |= {"rope_type", "type"}
    if len(names) > 1:
        found = "`rope_type` and `type` name different kinds"
        one.refuse("type", found, code="model.contradictory")
    kind = names.pop() if names else PLAIN
    if kind not in known:
        *rest, last = (f"`{name}`" for name in known)
        found = f"rope type `{kind[:40]}` has no lowering"
        way = f"use {', '.join(rest)} or {last}"
        one.refuse("rope_type", found, code="model.not-lowered", way=way)
    return kind


def _factor(one: Fields, kind: str) -> float:
    """The factor of one object of this type."""
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
