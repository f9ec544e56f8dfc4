"""Whether a host can make a function's calls: what they leave, and what each may take."""

from collections.abc import Iterator

from topoc.lowering.bundle.scope import Problem
from topoc.lowering.bundle.writes import Writes, graph_rows, states_of, writes_of
from topoc.lowering.manifest import Buffer, Function, Manifest

ANSWERS = frozenset({"token", "logits", "topk_ids", "hidden"})


def of_call(manifest: Manifest, function: Function) -> Iterator[Problem]:
    """What is wrong with a function as a whole."""
    if function.tokens < 1 or (function.role == "decode" and function.tokens != 1):
        message = f"`{function.name}` is a {function.role} of {function.tokens} tokens"
        yield Problem("bundle.shapes-disagree", message, ".tokens")
    told = any(one.sink.kind in ANSWERS for step in function.steps for one in step.outputs)
    if told != function.answers:
        message = f"`{function.name}` gives {'an' if told else 'no'} answer, and says otherwise"
        yield Problem("bundle.shapes-disagree", message, ".answers")
    writes = writes_of(function)
    for buffer in manifest.buffers:
        yield from _written(function, buffer, writes)
    yield from _batch(manifest, function, writes)
    yield from _copies(manifest, function)


def _written(function: Function, buffer: Buffer, writes: Writes) -> Iterator[Problem]:
    """Every call leaves every row of a buffer with its new entries, exactly once."""
    for at, row in enumerate(buffer.rows):
        times = writes.replaced[buffer.id, at] + writes.handed[buffer.id, at]
        if buffer.store == "state" and not times:
            times = int(buffer.id in writes.held)
        if times != 1:
            what = f"the {row.holds} of layer {row.layer} in buffer `{buffer.id}`"
            message = f"`{function.name}` writes {what} {times} times"
            yield Problem("bundle.buffer-writes", message, ".steps")
            return


def _batch(manifest: Manifest, function: Function, writes: Writes) -> Iterator[Problem]:
    """What a call that writes several rows itself must refuse."""
    written = list(graph_rows(manifest, writes))
    if written and function.role == "verify":
        message = f"`{function.name}` writes caches that only its accepted rows may enter"
        yield Problem("bundle.graph-write", message, ".steps")
    slots = {row.slots for buffer in manifest.buffers for row in buffer.rows}
    for one in function.unwrapped:
        if one not in slots or one < function.tokens:
            message = f"no cache of {one} slots takes {function.tokens} rows without a wrap"
            yield Problem("bundle.graph-write", message, ".unwrapped")
    if function.tokens == 1:
        return
    sources = [one.source for step in function.steps for one in step.inputs]
    shifted = any(row.rule == "shift" for row in written) or any(
        (one.kind, one.keys, one.rule) == ("mask", "cache", "shift") for one in sources
    )
    indexed = {one.slots for one in sources if one.kind == "index"}
    if (shifted or indexed) and not function.full_only:
        message = f"`{function.name}` would count padding rows in: it takes full calls only"
        yield Problem("bundle.graph-write", message, ".full_only")
    for one in sorted(n for n in indexed if n is not None and n < manifest.model.context):
        if one not in function.unwrapped:
            message = f"`{function.name}` would wrap in a cache of {one} slots"
            yield Problem("bundle.graph-write", message, ".unwrapped")


def _copies(manifest: Manifest, function: Function) -> Iterator[Problem]:
    """A state is brought over from every other package that may have changed it last."""
    holders: dict[str, set[str]] = {}
    for one in manifest.functions:
        for step in one.steps:
            for _, buffer in states_of(step):
                holders.setdefault(buffer, set()).add(step.package)
    needed = {
        (buffer, step.package, other)
        for step in function.steps
        for _, buffer in states_of(step)
        for other in holders[buffer] - {step.package}
    }
    listed = [(c.buffer, c.package, other) for c in function.copies for other in c.others]
    for buffer, package, other in sorted(needed - set(listed)):
        message = f"`{package}` misses what `{other}` writes into state `{buffer}`"
        yield Problem("bundle.copies", message, ".copies")
    for buffer, package, other in sorted(set(listed) - needed):
        message = f"`{package}` and `{other}` hold no state `{buffer}` in common"
        yield Problem("bundle.copies", message, ".copies")


def of_states(manifest: Manifest) -> Iterator[Problem]:
    """In a package a state has one name, whatever function runs; it is fp16 and begins with 0."""
    for i, buffer in enumerate(manifest.buffers):
        if buffer.store == "state" and (buffer.initial, buffer.dtype) != (0, "fp16"):
            found = f"{buffer.dtype} and begins with {buffer.initial}"
            message = f"state `{buffer.id}` is {found}; states are fp16 and begin with 0"
            yield Problem("bundle.state", message, f".buffers[{i}]")
    names: dict[tuple[str, str], str] = {}
    for i, function in enumerate(manifest.functions):
        for j, step in enumerate(function.steps):
            for feature, name in states_of(step):
                known = names.setdefault((step.package, name), feature)
                if known != feature:
                    message = f"state `{name}` is `{known}` and `{feature}` in `{step.package}`"
                    part = f".functions[{i}].steps[{j}].inputs"
                    yield Problem("bundle.state", message, part)
