"""Whether a feature fits its source or sink: shape, dtype, and the names it refers to."""

from collections.abc import Callable, Iterator
from math import isfinite

from attrs import evolve, field, frozen

from topoc.lowering.manifest import Buffer, Function, Input, Manifest, Output, Source


@frozen
class Problem:
    """A disagreement, and the field where it stands, as the end of a JSON path."""

    code: str
    message: str
    part: str = ""

    def at(self, part: str) -> "Problem":
        """The same, told from further up."""
        return evolve(self, part=part + self.part)


@frozen
class Scope:
    """What a function's features may refer to; `values` grows from step to step."""

    manifest: Manifest
    function: Function
    values: dict[str, Output] = field(factory=dict, init=False)

    def buffer(self, name: str | None) -> Buffer | None:
        """The buffer of this id."""
        return next((one for one in self.manifest.buffers if one.id == name), None)


Shape = tuple[int, ...]
Rule = Callable[[Input, Scope], Iterator[Problem]]


def of_input(one: Input, scope: Scope) -> Iterator[Problem]:
    """What is wrong with an input feature."""
    yield from INPUTS[one.source.kind](one, scope)


def of_output(one: Output, scope: Scope) -> Iterator[Problem]:
    """What is wrong with an output feature; a value is remembered for later steps."""
    sink, tokens, model = one.sink, scope.function.tokens, scope.manifest.model
    rows = tokens if scope.function.role == "verify" else 1
    if not (isfinite(sink.scale) and sink.scale > 0):
        yield Problem("bundle.scale", f"a scale is {sink.scale}, not above zero", ".sink.scale")
    match sink.kind:
        case "value":
            if str(sink.name) in scope.values:
                message = f"value `{sink.name}` is given twice"
                yield Problem("bundle.repeated-name", message, ".sink.name")
            scope.values[str(sink.name)] = one
        case "buffer" | "rows":
            yield from _stored(one, scope)
        case "token":
            yield from _agree(one, (1, 1, 1, rows), "int32")
        case "logits":
            yield from _agree(one, (1, model.vocabulary, 1, rows))
        case "hidden":
            yield from _agree(one, (1, model.hidden, 1, rows))
        case "topk_ids" | "topk_logits":
            best = one.shape[1] if len(one.shape) == 4 else 1
            wanted = "int32" if sink.kind == "topk_ids" else None
            yield from _agree(one, (1, min(best, model.vocabulary), 1, rows), wanted)


def _agree(one: Input | Output, shape: Shape, dtype: str | None = None) -> Iterator[Problem]:
    """A feature's shape and dtype against those that its meaning asks for."""
    if one.shape != shape:
        message = f"`{one.feature}` is {one.shape} and {shape} is meant"
        yield Problem("bundle.shapes-disagree", message, ".shape")
    if one.dtype != dtype and (dtype is not None or one.dtype == "int32"):
        message = f"`{one.feature}` is {one.dtype} and {dtype or 'fp16 or fp32'} is meant"
        yield Problem("bundle.shapes-disagree", message, ".dtype")


def _unknown(what: str, name: str | None, part: str) -> Problem:
    return Problem("bundle.unknown-name", f"no {what} is called `{name}`", part)


def _stored(one: Output, scope: Scope) -> Iterator[Problem]:
    """A whole buffer, or the call's rows of one."""
    buffer = scope.buffer(one.sink.name)
    if buffer is None:
        yield _unknown("buffer", one.sink.name, ".sink.name")
        return
    layers, heads, _, width = buffer.shape
    if one.sink.kind == "rows":
        yield from _agree(one, (layers, heads, scope.function.tokens, width), buffer.dtype)
        return
    yield from _agree(one, buffer.shape, buffer.dtype)
    if scope.function.tokens > 1:
        message = f"a call of {scope.function.tokens} tokens replaces buffer `{buffer.id}`"
        yield Problem("bundle.graph-write", message, ".sink.kind")


def _tokens(one: Input, scope: Scope) -> Iterator[Problem]:
    yield from _agree(one, (1, scope.function.tokens), "int32")


def _embedding(one: Input, scope: Scope) -> Iterator[Problem]:
    table = scope.manifest.tables.get(str(one.source.name))
    if table is None:
        yield _unknown("table", one.source.name, ".source.name")
    else:
        yield from _agree(one, (1, table.width, 1, scope.function.tokens))


def _rope(one: Input, scope: Scope) -> Iterator[Problem]:
    rope = scope.manifest.ropes.get(str(one.source.name))
    if rope is None:
        yield _unknown("rope table", one.source.name, ".source.name")
    else:
        yield from _agree(one, (1, 1, rope.width, scope.function.tokens))


def _buffer(one: Input, scope: Scope) -> Iterator[Problem]:
    buffer = scope.buffer(one.source.name)
    if buffer is None:
        yield _unknown("buffer", one.source.name, ".source.name")
    else:
        yield from _agree(one, buffer.shape, buffer.dtype)


def _value(one: Input, scope: Scope) -> Iterator[Problem]:
    made = scope.values.get(str(one.source.name))
    if made is None:
        yield _unknown("value of an earlier step", one.source.name, ".source.name")
    else:
        yield from _agree(one, made.shape, made.dtype)


def _slot(one: Input, scope: Scope) -> Iterator[Problem]:
    source = one.source
    if source.slots is None or source.rule is None:
        yield Problem("bundle.incomplete", "a slot needs slots and rule", ".source")
        return
    yield from _agree(one, (1, 1, source.slots, 1))
    if scope.function.tokens > 1:
        message = f"a call of {scope.function.tokens} tokens has no one slot"
        yield Problem("bundle.graph-write", message, ".source.kind")
    if not any((b.shape[2], b.rule) == (source.slots, source.rule) for b in scope.manifest.buffers):
        message = f"no buffer has {source.slots} slots by the rule `{source.rule}`"
        yield Problem("bundle.shapes-disagree", message, ".source")


def _last_row(one: Input, scope: Scope) -> Iterator[Problem]:
    yield from _agree(one, (1, 1, 1, scope.function.tokens))


def _mask(one: Input, scope: Scope) -> Iterator[Problem]:
    source, tokens = one.source, scope.function.tokens
    if None in (source.slots, source.rule, source.keys, source.fill):
        yield Problem("bundle.incomplete", "a mask needs slots, rule, keys and fill", ".source")
        return
    slots, fill = source.slots or 0, source.fill or 0.0
    own = 0 if source.keys == "cache" else tokens
    yield from _agree(one, (1, 1, tokens, slots + own))
    limit = 65504.0 if one.dtype == "fp16" else 3.4e38
    if not -limit <= fill < 0:
        message = f"the fill is {fill}, not a finite {one.dtype} below zero"
        yield Problem("bundle.mask", message, ".source.fill")
    context = scope.manifest.model.context
    reach = min(context, source.window or context) - (1 if own else 0)
    if slots < reach:
        message = f"{slots} slots can't hold the {reach} positions that a query sees"
        yield Problem("bundle.mask", message, ".source.slots")
    yield from _fed(source, scope)


def _fed(source: Source, scope: Scope) -> Iterator[Problem]:
    """Some buffer stands as the mask tells, and is written as its keys say."""
    buffers = [
        one.id
        for one in scope.manifest.buffers
        if (one.shape[2], one.rule, one.window) == (source.slots, source.rule, source.window)
    ]
    if not buffers:
        message = f"no buffer has {source.slots} slots, rule `{source.rule}` and this window"
        yield Problem("bundle.shapes-disagree", message, ".source")
        return
    sinks = {
        one.sink.kind
        for step in scope.function.steps
        for one in step.outputs
        if one.sink.name in buffers and one.sink.kind in {"buffer", "rows"}
    }
    wanted = "buffer" if source.keys == "cache" else "rows"
    if sinks and wanted not in sinks:
        message = f"the mask's keys are `{source.keys}` and no buffer of its kind is written so"
        yield Problem("bundle.mask", message, ".source.keys")


INPUTS: dict[str, Rule] = {
    "tokens": _tokens,
    "embedding": _embedding,
    "buffer": _buffer,
    "value": _value,
    "rope_cos": _rope,
    "rope_sin": _rope,
    "mask": _mask,
    "slot": _slot,
    "last_row": _last_row,
}
