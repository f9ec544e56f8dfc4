"""Whether an output feature fits its sink: shape, dtype, and the names it refers to."""

from collections.abc import Iterator
from math import isfinite

from topoc.lowering.bundle.scope import Problem, Scope, unknown
from topoc.lowering.bundle.shapes import agree, channels, numbers
from topoc.lowering.manifest import Buffer, Output


def of_output(one: Output, scope: Scope) -> Iterator[Problem]:
    """What is wrong with an output feature; a value is remembered for later steps."""
    sink = one.sink
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
        case "tap":
            yield from _tap(one, scope)
        case _:
            yield from _answer(one, scope)


def _answer(one: Output, scope: Scope) -> Iterator[Problem]:
    """What the model says: of all rows of a verify, else of the last real one."""
    model, layout = scope.manifest.model, one.sink.layout
    verify = scope.function.role == "verify"
    rows = scope.function.tokens if verify else 1
    match one.sink.kind:
        case "token":
            yield from agree(one, numbers(layout, rows, each=verify), "int32")
        case "token_logit":
            yield from agree(one, numbers(layout, rows, each=verify))
        case "logits":
            yield from agree(one, channels(layout, model.vocabulary, rows))
        case "hidden":
            yield from agree(one, channels(layout, model.hidden, rows))
        case kind:
            at = 1 if layout == "channels" else 2
            best = min(one.shape[at] if len(one.shape) > at else 1, model.vocabulary)
            wanted = "int32" if kind == "topk_ids" else None
            yield from agree(one, channels(layout, best, rows), wanted)


def _tap(one: Output, scope: Scope) -> Iterator[Problem]:
    """The residual stream of every row, told once for a layer."""
    model, layer = scope.manifest.model, one.sink.layer
    yield from agree(one, channels(one.sink.layout, model.hidden, scope.function.tokens))
    if layer is None or not 0 <= layer < model.layers:
        message = f"a tap is of layer {layer}, and the model has {model.layers} layers"
        yield Problem("bundle.incomplete", message, ".sink.layer")
    sinks = [o.sink for step in scope.function.steps for o in step.outputs]
    if [(s.kind, s.layer) for s in sinks].count(("tap", layer)) > 1:
        message = f"layer {layer} is tapped twice"
        yield Problem("bundle.repeated-name", message, ".sink.layer")


def _stored(one: Output, scope: Scope) -> Iterator[Problem]:
    """Whole rows of a buffer, or the call's own entries of them."""
    buffer, tokens = scope.buffer(one.sink.name), scope.function.tokens
    if buffer is None:
        yield unknown("buffer", one.sink.name, ".sink.name")
        return
    first, count = one.sink.row, one.shape[0] if one.shape else 0
    if first < 0 or count < 1 or first + count > len(buffer.rows):
        rows = f"rows {first} to {first + count - 1}"
        message = f"`{one.feature}` fills {rows}, and buffer `{buffer.id}` has {len(buffer.rows)}"
        yield Problem("bundle.shapes-disagree", message, ".sink.row")
        return
    if one.sink.kind == "rows":
        yield from _handed(one, buffer, tokens)
        if buffer.store == "state" and buffer.id not in scope.writes.held:
            message = f"rows of state `{buffer.id}` come from packages that don't hold it"
            yield Problem("bundle.state", message, ".sink.name")
        return
    yield from agree(one, (count, *buffer.shape[1:]), buffer.dtype)
    if buffer.store == "state":
        message = f"state `{buffer.id}` is not the host's to replace"
        yield Problem("bundle.state", message, ".sink.kind")


def _handed(one: Output, buffer: Buffer, tokens: int) -> Iterator[Problem]:
    """New rows have the buffer's heads and width, or their layers' own.

    States are fp16 whatever the packages compute in, and rows are stored into them rounded.
    """
    count = one.shape[0]
    _, heads, _, width = buffer.shape
    mine = {(row.heads, row.width) for row in buffer.rows[one.sink.row :][:count]}
    if len(mine) == 1 and one.shape[1::2] in mine:
        ((heads, width),) = mine
    dtype = buffer.dtype if buffer.store == "io" else None
    yield from agree(one, (count, heads, tokens, width), dtype)
