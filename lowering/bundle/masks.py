"""Whether a mask can show each query what it may see, and nothing is missing behind it."""

from collections.abc import Iterator

from topoc.lowering.bundle.scope import Problem, Scope
from topoc.lowering.bundle.shapes import agree
from topoc.lowering.manifest import Function, Input, Row, Source

LARGEST = {"fp16": 65504.0, "fp32": 3.4e38}  # finite values


def of_mask(one: Input, scope: Scope) -> Iterator[Problem]:
    """What is wrong with a mask."""
    source, tokens = one.source, scope.function.tokens
    if None in (source.slots, source.rule, source.keys, source.fill):
        yield Problem("bundle.incomplete", "a mask needs slots, rule, keys and fill", ".source")
        return
    slots, fill = source.slots or 0, source.fill or 0.0
    own = 0 if source.keys == "cache" else tokens
    yield from agree(one, (1, 1, tokens, slots + own))
    if not -LARGEST.get(one.dtype, 0.0) <= fill < 0:
        message = f"the fill is {fill}, not a finite {one.dtype} below zero"
        yield Problem("bundle.mask", message, ".source.fill")
    reach = _reach(source, scope.function, scope.manifest.model.context)
    if slots < reach:
        message = f"{slots} slots can't hold the {reach} positions that a query sees"
        yield Problem("bundle.mask", message, ".source.slots")
    yield from _fed(source, scope)


def _reach(source: Source, function: Function, context: int) -> int:
    """The positions that a cache must hold so that no query of a call misses one.

    After the call has been written, its first query still looks back over a whole window; before
    it, the first query's own position is not among them. A verify that sees its rows as if they
    were written is refused where that would push out positions, when it is called.
    """
    window = source.window or context
    if source.keys == "cache+call":
        return min(context, window) - 1
    if function.role == "verify":
        return min(context, window)
    return min(context, window + function.tokens - 1)


def _fed(source: Source, scope: Scope) -> Iterator[Problem]:
    """Some row of a buffer stands as the mask tells, and is written as its keys say."""
    found = [
        (buffer.id, at)
        for buffer in scope.manifest.buffers
        for at, row in enumerate(buffer.rows)
        if _holds(row, source)
    ]
    if not found:
        message = f"no buffer has {source.slots} slots, rule `{source.rule}` and this window"
        yield Problem("bundle.shapes-disagree", message, ".source")
        return
    by_graph = any(scope.writes.in_graph(*one) for one in found)
    by_host = any(scope.writes.by_host(*one) for one in found)
    verify = scope.function.role == "verify"
    stale = source.keys == "cache" and by_host and not by_graph and not verify
    twice = source.keys == "cache+call" and scope.function.tokens == 1 and not by_host and by_graph
    if stale or twice:
        message = f"the mask's keys are `{source.keys}` and no buffer of its kind is written so"
        yield Problem("bundle.mask", message, ".source.keys")


def _holds(row: Row, source: Source) -> bool:
    """Whether a row has the mask's slots, and no reader of them looks further than its owner."""
    if (row.slots, row.rule) != (source.slots, source.rule):
        return False
    return row.window is None or (source.window is not None and source.window <= row.window)
