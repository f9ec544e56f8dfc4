"""The heads of each layer: how many keys and values they share, and how wide they are."""

from collections.abc import Iterator

from attrs import evolve, frozen

from topoc.dsl.model import Kind
from topoc.dsl.plain import Plain
from topoc.lowering.families.config import Fields


@frozen(kw_only=True, eq=False, repr=False)
class Geometry(Plain):
    """The KV heads of one layer, the width of its heads, and the field that says the width."""

    kv_heads: int
    head_dim: int
    field: str = "head_dim"


def check(text: Fields, heads: int, shape: Geometry) -> None:
    """Refuse head counts that don't divide, and a head width that is odd."""
    if heads % shape.kv_heads:
        found = f"{heads} query heads do not share {shape.kv_heads} key and value heads evenly"
        text.refuse("num_key_value_heads", found)
    if shape.head_dim % 2:
        found = f"{shape.field} {shape.head_dim} is odd and the rotary embedding turns pairs"
        text.refuse(shape.field, found)


def of(
    text: Fields, heads: int, each: tuple[Kind, ...], donors: tuple[int | None, ...]
) -> tuple[Geometry, ...]:
    """By kind, as Gemma 4 was published, or layer by layer, as transformers 5 writes it.

    Each kind must have one head width, since it has one rotary table, and a layer that shares
    must have the KV heads of its donor.
    """
    near = Geometry(
        kv_heads=text.count("num_key_value_heads", 4), head_dim=text.count("head_dim", 256)
    )
    if text.has("num_global_key_value_heads"):
        text.notices.append("`num_global_key_value_heads` is passed over: V is no copy of K")
    text.taken |= {"num_global_key_value_heads", "global_head_dim"}
    if "per_layer_config" in text.values:
        if text.has("global_head_dim"):
            text.notices.append("`global_head_dim` is passed over: `per_layer_config` counts")
        own = dict(_told(text, near, len(each)))
        shapes = tuple(own.get(index, near) for index in range(len(each)))
    else:
        name = "global_head_dim"
        wide = evolve(near, head_dim=text.count(name, 512), field=name)
        shapes = tuple(wide if kind is Kind.FULL else near for kind in each)
    for shape in dict.fromkeys(shapes):
        check(text, heads, shape)
    _check_kinds(text, each, shapes)
    _check_donors(text, donors, shapes)
    return shapes


def _told(text: Fields, near: Geometry, count: int) -> Iterator[tuple[int, Geometry]]:
    """The layers that `per_layer_config` tells of; its keys are numbers, with or without zeros."""
    table = text.within("per_layer_config")
    met: set[int] = set()
    for key in table.values:
        layer = int(key) if key.isascii() and key.isdecimal() and len(key) < 9 else count
        one = table.within(key)
        if layer >= count or layer in met:
            table.refuse(key[:20], f"`{key[:20]}` is no layer of {count}, or stands here twice")
        met.add(layer)
        names = [name for name in ("head_dim", "num_key_value_heads") if name in one.values]
        said = {name: one.count(name, 1) for name in names}
        one.finish(frozenset())
        shape = Geometry(
            kv_heads=said.get("num_key_value_heads", near.kv_heads),
            head_dim=said.get("head_dim", near.head_dim),
            field="per_layer_config" if "head_dim" in said else near.field,
        )
        yield layer, shape


def _check_kinds(text: Fields, each: tuple[Kind, ...], shapes: tuple[Geometry, ...]) -> None:
    for kind in sorted(set(each), key=lambda one: one.value):
        widths = {shape.head_dim for own, shape in zip(each, shapes, strict=True) if own is kind}
        if len(widths) > 1:
            told = " and ".join(map(str, sorted(widths)[:4]))
            found = f"{kind.value} layers have heads of {told}, and one width a kind is lowered"
            text.refuse("per_layer_config", found, code="model.not-lowered")


def _check_donors(
    text: Fields, donors: tuple[int | None, ...], shapes: tuple[Geometry, ...]
) -> None:
    for index, donor in enumerate(donors):
        if donor is not None and shapes[index].kv_heads != shapes[donor].kv_heads:
            count, other = shapes[index].kv_heads, shapes[donor].kv_heads
            found = f"layer {index} has {count} KV heads and reads layer {donor}, which has {other}"
            text.refuse("per_layer_config", found, code="model.contradictory")
