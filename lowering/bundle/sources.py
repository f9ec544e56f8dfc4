"""Whether an input feature fits its source: shape, dtype, and the names it refers to."""

from collections.abc import Callable, Iterator
from math import isfinite
from typing import Literal

from topoc.lowering.bundle.masks import of_mask
from topoc.lowering.bundle.scope import Problem, Scope, unknown
from topoc.lowering.bundle.shapes import agree, angles, channels
from topoc.lowering.manifest import Input

Rule = Callable[[Input, Scope], Iterator[Problem]]


def of_input(one: Input, scope: Scope) -> Iterator[Problem]:
    """What is wrong with an input feature."""
    scale = one.source.scale
    if not (isfinite(scale) and scale > 0):
        yield Problem("bundle.scale", f"a scale is {scale}, not above zero", ".source.scale")
    yield from INPUTS[one.source.kind](one, scope)


def _tokens(one: Input, scope: Scope) -> Iterator[Problem]:
    yield from agree(one, (1, scope.function.tokens), "int32")


def _embedding(one: Input, scope: Scope) -> Iterator[Problem]:
    table = scope.manifest.tables.get(str(one.source.name))
    if table is None:
        yield unknown("table", one.source.name, ".source.name")
    else:
        yield from agree(one, channels(one.source.layout, table.width, scope.function.tokens))


def _per_layer(one: Input, scope: Scope) -> Iterator[Problem]:
    made = scope.manifest.per_layer
    if made is None:
        message = "per-layer vectors are fed and the manifest does not say how they are made"
        yield Problem("bundle.incomplete", message, ".source.kind")
    else:
        count, tokens = made.layers * made.width, scope.function.tokens
        yield from agree(one, channels(one.source.layout, count, tokens))


def _rope(one: Input, scope: Scope) -> Iterator[Problem]:
    rope = scope.manifest.ropes.get(str(one.source.name))
    if rope is None:
        yield unknown("rope table", one.source.name, ".source.name")
    else:
        yield from agree(one, angles(one.source.layout, rope.width, scope.function.tokens))


def _kept(store: Literal["io", "state"]) -> Rule:
    """A whole buffer, which the host keeps or the package does."""

    def rule(one: Input, scope: Scope) -> Iterator[Problem]:
        buffer = scope.buffer(one.source.name)
        if buffer is None:
            yield unknown("buffer", one.source.name, ".source.name")
            return
        yield from agree(one, buffer.shape, buffer.dtype)
        if buffer.store != store:
            message = f"buffer `{buffer.id}` is kept as `{buffer.store}` and taken as `{store}`"
            yield Problem("bundle.state", message, ".source.kind")

    return rule


def _value(one: Input, scope: Scope) -> Iterator[Problem]:
    made = scope.values.get(str(one.source.name))
    if made is None:
        yield unknown("value of an earlier step", one.source.name, ".source.name")
    else:
        yield from agree(one, made.shape, made.dtype)


def _slot(one: Input, scope: Scope) -> Iterator[Problem]:
    if one.source.slots is None or one.source.rule is None:
        yield Problem("bundle.incomplete", "a slot needs slots and rule", ".source")
        return
    yield from agree(one, (1, 1, one.source.slots, scope.function.tokens))
    yield from _known_slots(one, scope)


def _index(one: Input, scope: Scope) -> Iterator[Problem]:
    """The slots behind the first one must follow it, which after a shift they do not."""
    if one.source.slots is None or one.source.rule is None:
        yield Problem("bundle.incomplete", "an index needs slots and rule", ".source")
        return
    yield from agree(one, (1,), "int32")
    yield from _known_slots(one, scope)
    if one.source.rule != "modulo":
        message = f"an index counts slots by the rule `modulo`, not `{one.source.rule}`"
        yield Problem("bundle.graph-write", message, ".source.rule")


def _known_slots(one: Input, scope: Scope) -> Iterator[Problem]:
    slots, rule = one.source.slots, one.source.rule
    rows = (row for buffer in scope.manifest.buffers for row in buffer.rows)
    if not any((row.slots, row.rule) == (slots, rule) for row in rows):
        message = f"no buffer has {slots} slots by the rule `{rule}`"
        yield Problem("bundle.shapes-disagree", message, ".source")


def _last_row(one: Input, scope: Scope) -> Iterator[Problem]:
    yield from agree(one, channels(one.source.layout, 1, scope.function.tokens))


INPUTS: dict[str, Rule] = {
    "tokens": _tokens,
    "embedding": _embedding,
    "per_layer": _per_layer,
    "buffer": _kept("io"),
    "state": _kept("state"),
    "value": _value,
    "rope_cos": _rope,
    "rope_sin": _rope,
    "mask": of_mask,
    "slot": _slot,
    "index": _index,
    "last_row": _last_row,
}
