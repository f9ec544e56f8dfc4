"""Whether a chunk list runs the whole model, once and in order."""

from collections.abc import Iterator, Sequence
from itertools import pairwise

from topoc.dsl import ast
from topoc.dsl.diagnostic import Diagnostic, Label, error
from topoc.dsl.model import Chunk, Kv, Part
from topoc.dsl.resolve.chain import Link
from topoc.dsl.resolve.chunks import PARTS, lines
from topoc.dsl.resolve.scope import Scope
from topoc.dsl.source import Span

_SET_HELP = "the chunk lines of a topology replace those of its base as a set; state them all"


def check_cover(
    scope: Scope,
    links: tuple[Link, ...],
    chunks: Sequence[Chunk],
    kept: Sequence[Kv],
    *,
    may_end_early: bool,
) -> None:
    """Report gaps, overlaps, parts out of order and a missing head in one list."""
    parts = [part for chunk in chunks for part in chunk.parts]
    if _permuted(parts):
        scope.report(_early_read(chunks, kept) or _late_layers(parts))
        return
    count = len(scope.layers.layers)
    misplaced = list(_order(parts))
    found = [*misplaced, *_layers(parts, _help(links))]
    reached = max((part.last + 1 for part in parts), default=0)
    if reached < count and not may_end_early:
        found.append(_short(links, chunks, reached, count))
    elif not misplaced and not may_end_early:
        found += _ending(chunks, parts)
    for finding in found:
        scope.report(finding)


def _permuted(parts: Sequence[Part]) -> bool:
    """Whether layers follow each other without gap or overlap, but not in this order."""
    firsts = [(part.first, part.last) for part in parts if part.kind == "layers"]
    ordered = sorted(firsts)
    joined = all(b[0] == a[1] + 1 for a, b in pairwise(ordered))
    return bool(firsts) and ordered[0][0] == 0 and joined and firsts != ordered


def _early_read(chunks: Sequence[Chunk], kept: Sequence[Kv]) -> Diagnostic | None:
    """The first chunk that reads KV which a later chunk produces."""
    where = {at: part for chunk in chunks for part in chunk.parts for at in _span_layers(part)}
    done: set[int] = set()
    for chunk in chunks:
        done.update(chunk.layers)
        for at in chunk.layers:
            donor = kept[at].donor
            if donor is not None and donor not in done:
                return early_read(chunk, where[at], where[donor], at, kept[at])
    return None


def _span_layers(part: Part) -> range:
    return range(part.first, part.last + 1)


def early_read(chunk: Chunk, reads: Part, makes: Part, reader: int, kv: Kv) -> Diagnostic:
    """The finding of a reader whose donor's chunk has not run yet."""
    rule = kv.at("source")
    where = f" (kv rule at {rule.line}:{rule.column})" if rule else ""
    return error(
        "kv.read-before-produce",
        f"`{chunk.name}` reads the KV of L{kv.donor} before any chunk has produced it",
        _span(reads),
        f"L{reader} shares L{kv.donor}{where}",
        related=(Label(_span(makes), f"L{kv.donor} is produced here"),),
        help="chunks run in the order in which they are declared; put the owners first",
    )


def _late_layers(parts: Sequence[Part]) -> Diagnostic:
    """The first range that comes after later layers."""
    layers = [part for part in parts if part.kind == "layers"]
    before, part = next((a, b) for a, b in pairwise(layers) if b.first < a.first)
    message = f"`{_span(part).text}` comes after later layers"
    label = Label(_span(before), "these run first")
    help_ = "chunks run in the order in which they are declared; put earlier layers first"
    return error("chunk.order", message, _span(part), related=(label,), help=help_)


def _order(parts: Sequence[Part]) -> Iterator[Diagnostic]:
    """Parts come as data flows, each of them once."""
    seen: dict[str, Part] = {}
    latest = parts[0]
    for part in parts:
        span = _span(part)
        if part.kind != "layers" and part.kind in seen:
            first = Label(_span(seen[part.kind]), "the first")
            message = f"`{part.kind}` stands twice in one chunk list"
            help_ = "remove one of the two"
            yield error("chunk.overlap", message, span, related=(first,), help=help_)
        elif PARTS.index(part.kind) < PARTS.index(latest.kind):
            message = f"`{span.text}` comes after `{_span(latest).text}`, which needs it"
            help_ = "parts stand as data flows: embed, ple, layers, norm, head"
            yield error("chunk.order", message, span, help=help_)
        else:
            latest = part
        seen.setdefault(part.kind, part)


def _help(links: tuple[Link, ...]) -> str:
    """What to do about a gap; a base's chunks are the usual reason for one."""
    stated = [link for link in links if link.of(ast.Chunk)]
    return _SET_HELP if stated[1:] and stated[-1] is links[-1] else "add them to a chunk"


def _layers(parts: Sequence[Part], help_: str) -> Iterator[Diagnostic]:
    """Layer ranges follow each other without gap or overlap."""
    following, before = 0, None
    for part in parts:
        if part.kind != "layers":
            continue
        if part.first > following:
            yield _gap(part, following, before, help_)
        elif part.first < following and before is not None:
            last = min(part.last, following - 1)
            twice = f"L{part.first}" if last == part.first else f"L{part.first}-{last}"
            label = Label(_span(before), "they run here already")
            message = f"{twice} stand{'s' * (last == part.first)} in two places"
            help_ = "let this range begin after that one ends"
            yield error("chunk.overlap", message, _span(part), related=(label,), help=help_)
        following, before = max(following, part.last + 1), part


def _gap(part: Part, following: int, before: Part | None, help_: str) -> Diagnostic:
    last = part.first - 1
    name = f"L{following}" if last == following else f"L{following}-{last}"
    verb = "is" if last == following else "are"
    related = () if before is None else (Label(_span(before), "the chunk list stops here"),)
    message = f"{name} {verb} in no chunk before `{_span(part).text}`"
    return error("chunk.gap", message, _span(part), help=help_, related=related)


def _short(
    links: tuple[Link, ...], chunks: Sequence[Chunk], reached: int, count: int
) -> Diagnostic:
    """The list ends before the model does."""
    name = f"L{reached}" if reached == count - 1 else f"L{reached}-{count - 1}"
    message = f"the last chunk ends before {name}"
    last = chunks[-1].parts[-1]
    _, stating = lines(links)
    based = stating is links[-1] and any(link.of(ast.Chunk) for link in links[:-1])
    help_ = _SET_HELP if based else f"add `{name}` to a chunk"
    if stating is not links[-1]:
        help_ = f"the chunks are those of `{stating.topology.name}`; state your own"
    return error("chunk.gap", message, _span(last), help=help_)


def _ending(chunks: Sequence[Chunk], parts: Sequence[Part]) -> Iterator[Diagnostic]:
    """The model ends in its norm and its head."""
    kinds = [part.kind for part in parts]
    if "norm" in kinds and "head" in kinds:
        return
    missing = " + ".join(
        {"norm": "norm", "head": "head(argmax)"}[kind]
        for kind in ("norm", "head")
        if kind not in kinds
    )
    message = f"`{chunks[-1].name}` is the last chunk and has no `{missing}`"
    at = parts[-1]
    yield error("chunk.no-head", message, _span(at), help=f"add `+ {missing}` in its place")


def _span(part: Part) -> Span:
    if part.span is None:
        message = "a part that was read from text has a place"
        raise AssertionError(message)
    return part.span
