"""The `chunk` lines: what each chunk holds, and which list it belongs to."""

from attrs import frozen

from topoc.dsl import ast
from topoc.dsl.diagnostic import Label, error
from topoc.dsl.model import Chunk, Head, Part
from topoc.dsl.plain import Plain
from topoc.dsl.resolve.arguments import arguments
from topoc.dsl.resolve.chain import Link
from topoc.dsl.resolve.scope import Option, Scope

UNITS = ("ane", "gpu", "cpu", "all")
MODES = ("argmax", "logits", "hidden")
PARTS = ("embed", "ple", "layers", "norm", "head")
_CHUNK = (Option("unit", words=UNITS), Option("function", any_word=True))
_HEAD = (Option("mode", words=MODES, bare=True), Option("topk"), Option("split"))


@frozen(eq=False, repr=False)
class Listed(Plain):
    """A chunk, and the function whose own list it belongs to."""

    chunk: Chunk
    function: str | None


def lines(links: tuple[Link, ...]) -> tuple[tuple[ast.Chunk, ...], Link]:
    """The chunk lines that count, and the link that states them: the last that has any."""
    for link in reversed(links):
        if link.of(ast.Chunk):
            return link.of(ast.Chunk), link
    return (), links[-1]


def chunks(scope: Scope, links: tuple[Link, ...]) -> tuple[Listed, ...] | None:
    """The chunks in order, or None after an error was reported."""
    written, _ = lines(links)
    if not written:
        message = f"`{links[-1].topology.name}` has no chunks"
        last = len(scope.layers.layers) - 1
        help_ = f"one that holds everything: `chunk all_layers = L0-{last} + norm + head(argmax)`"
        scope.report(error("chunk.missing", message, links[-1].topology.name.span, help=help_))
        return None
    found = [_chunk(scope, line) for line in written]
    _report_duplicates(scope, written)
    sound = [one for one in found if one is not None]
    return tuple(sound) if len(sound) == len(found) else None


def _report_duplicates(scope: Scope, written: tuple[ast.Chunk, ...]) -> None:
    seen: dict[str, ast.Chunk] = {}
    for line in written:
        name = line.call.name
        if name in seen:
            message = f"two chunks are called `{name}`"
            first = Label(seen[name].call.span, "the first")
            scope.report(error("name.duplicate", message, line.call.span, related=(first,)))
        seen.setdefault(name, line)


def _chunk(scope: Scope, line: ast.Chunk) -> Listed | None:
    given = arguments(scope, line.call, _CHUNK, "chunk.argument")
    parts = [_part(scope, part) for part in line.parts]
    if given is None or any(part is None for part in parts):
        return None
    unit, function = given.get("unit"), given.get("function")
    chunk = Chunk(
        name=line.call.name,
        parts=tuple(part for part in parts if part is not None),
        unit=None if unit is None else str(unit),
        span=line.call.span,
    )
    return Listed(chunk, None if function is None else str(function))


def _part(scope: Scope, part: ast.Range | ast.Call) -> Part | None:
    if isinstance(part, ast.Range):
        numbers = scope.span_of(part)
        if numbers is None:
            return None
        return Part(kind="layers", first=numbers[0], last=numbers[-1], span=part.span)
    known = [kind for kind in PARTS if kind != "layers"]
    if part.name not in known:
        scope.unknown("part.unknown", part.name, known, part.span, "part")
        return None
    if part.name == "ple" and not scope.layers.has_ple:
        message = f"`{scope.layers.family}` has no per-layer embeddings"
        scope.report(error("part.not-in-model", message, part.span, help="remove `ple`"))
        return None
    if part.name == "head":
        return _head(scope, part)
    given = arguments(scope, part, (), "part.argument")
    return None if given is None else Part(kind=part.name, span=part.span)


def _head(scope: Scope, part: ast.Call) -> Part | None:
    given = arguments(scope, part, _HEAD, "part.argument")
    if given is None:
        return None
    mode, k, split = given.get("mode"), given.get("topk"), given.get("split", 1)
    if (mode is None) == (k is None):
        message = "the head gives one thing" if mode else "the head does not say what it gives"
        help_ = "write `head(argmax)`, `head(logits)`, `head(hidden)` or `head(topk = K)`"
        scope.report(error("part.argument", message, part.span, help=help_))
        return None
    head = Head(
        mode="topk" if mode is None else str(mode),
        k=k if isinstance(k, int) else None,
        split=split if isinstance(split, int) else 1,
    )
    return Part(kind="head", head=head, span=part.span)
