"""What differs between two topologies, in the language's own words.

Plain comparison of what was meant: two files that resolve alike differ in nothing, however they
were written.
"""

from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from typing import TypeVar

from attrs import frozen

from topoc.dsl.measure import decode_chunks
from topoc.dsl.model import (
    Block,
    Chunk,
    Function,
    Scheme,
    Topology,
)
from topoc.dsl.plain import Plain
from topoc.dsl.resolve.selector import listed
from topoc.dsl.words import amount, attention, held, kept, part_words

_K = TypeVar("_K")
_V = TypeVar("_V", bound=Hashable)


@frozen(kw_only=True, eq=False, repr=False)
class Change(Plain):
    """One thing that differs: what it is, and what it was and is; None where there is none."""

    what: str
    before: str | None
    after: str | None


@frozen(kw_only=True, eq=False, repr=False)
class Differences(Plain):
    """Everything that differs, by subject."""

    settings: tuple[Change, ...]
    chunks: tuple[Change, ...]  # where layers and parts run
    kv: tuple[Change, ...]  # how caches are kept, and whose KV crosses which walls
    attention: tuple[Change, ...]
    functions: tuple[Change, ...]
    quantisation: tuple[Change, ...]
    budgets: tuple[Change, ...]
    verdict: tuple[Change, ...]

    def __bool__(self) -> bool:
        """Whether anything differs."""
        return any(self.groups().values())

    def groups(self) -> dict[str, tuple[Change, ...]]:
        """The changes by subject, in order."""
        names = ("settings", "chunks", "kv", "attention", "functions", "quantisation")
        return {name: getattr(self, name) for name in (*names, "budgets", "verdict")}


def diff(before: Topology, after: Topology) -> Differences:
    """What differs between two topologies."""
    return Differences(
        settings=tuple(_pairs(_settings(before), _settings(after))),
        chunks=tuple(_chunks(before, after)),
        kv=(*_blocks(before, after, kept), *_crossing(before, after)),
        attention=tuple(_blocks(before, after, _runs)),
        functions=tuple(_pairs(_functions(before), _functions(after))),
        quantisation=tuple(_quantisation(before, after)),
        budgets=tuple(_pairs(_budgets(before), _budgets(after))),
        verdict=tuple(_pairs(_verdict(before), _verdict(after))),
    )


def _pairs(before: dict[str, str], after: dict[str, str]) -> Iterator[Change]:
    """What was added, removed or changed between two tables of words."""
    for what in dict.fromkeys((*before, *after)):
        if before.get(what) != after.get(what):
            yield Change(what=what, before=before.get(what), after=after.get(what))


def _settings(topology: Topology) -> dict[str, str]:
    target = topology.target
    words = (target.unit, target.deployment, target.chip)
    table = topology.layers
    return {
        "model": f"{table.family}, {len(table.layers)} layers, width {table.hidden}",
        "target": " ".join(word for word in words if word),
        "context": str(topology.context),
        "features": topology.features,
        **({"tap": listed(topology.taps)} if topology.taps else {}),
    }


def _chunks(before: Topology, after: Topology) -> Iterator[Change]:
    """Chunks that only changed their name, then what moved from one chunk to another."""
    here, there = decode_chunks(before), decode_chunks(after)
    renamed = _renamed(before, after)
    for one in there:
        for name in (old for old, new in renamed.items() if new == one.name != old):
            yield Change(what=f"chunk of {held(one)}", before=name, after=one.name)
    now = _places(there)
    was = {what: renamed.get(name, name) for what, name in _places(here).items()}
    moved = {what: (was.get(what), now.get(what)) for what in {**was, **now}}
    differing = {what: pair for what, pair in moved.items() if pair[0] != pair[1]}
    for names, (old, new) in _grouped(differing):
        yield Change(what=_things(names), before=old, after=new)
    yield from _pairs(_units(here), _units(there))


def _renamed(before: Topology, after: Topology) -> dict[str, str]:
    """The chunks of the one that the other has too, and what it calls them."""
    names = {held(one): one.name for one in decode_chunks(after)}
    here = {one.name: names.get(held(one)) for one in decode_chunks(before)}
    return {name: new for name, new in here.items() if new is not None}


def _units(chunks: Sequence[Chunk]) -> dict[str, str]:
    return {f"unit of {one.name}": one.unit for one in chunks if one.unit}


def _places(chunks: Sequence[Chunk]) -> dict[int | str, str]:
    """The chunk of each layer and of each other part."""
    found: dict[int | str, str] = {}
    for chunk in chunks:
        for part in chunk.parts:
            if part.kind == "layers":
                found |= dict.fromkeys(range(part.first, part.last + 1), chunk.name)
            else:
                found[part_words(part)] = chunk.name
    return found


def _things(names: Sequence[int | str]) -> str:
    layers = [one for one in names if isinstance(one, int)]
    words = [one for one in names if isinstance(one, str)]
    return ", ".join([*([listed(sorted(layers))] if layers else []), *words])


def _grouped(found: dict[_K, _V]) -> Iterable[tuple[list[_K], _V]]:
    """Keys of one value together."""
    groups: dict[_V, list[_K]] = {}
    for key, value in found.items():
        groups.setdefault(value, []).append(key)
    return [(keys, value) for value, keys in groups.items()]


def _blocks(
    before: Topology, after: Topology, told: Callable[[Block], dict[str, str]]
) -> Iterator[Change]:
    """Properties of layers that differ, layers of one change together."""
    found: dict[tuple[str, int], tuple[str | None, str | None]] = {}
    for old, new in zip(before.blocks, after.blocks, strict=False):
        here, there = told(old), told(new)
        for what in dict.fromkeys((*here, *there)):
            if here.get(what) != there.get(what):
                found[what, old.index] = here.get(what), there.get(what)
    by_change: dict[tuple[str, str | None, str | None], list[int]] = {}
    for (what, at), (old_word, new_word) in found.items():
        by_change.setdefault((what, old_word, new_word), []).append(at)
    for (what, was, now), layers in by_change.items():
        yield Change(what=f"{what} of {listed(layers)}", before=was, after=now)


def _runs(block: Block) -> dict[str, str]:
    return {"attention": attention(block.attention)}


def _crossing(before: Topology, after: Topology) -> Iterator[Change]:
    """Whose KV goes from chunk to chunk; a chunk of another name alone is no change."""
    renamed = _renamed(before, after)
    here, there = _crossings(before), _crossings(after)
    taken = {*renamed.values()}
    for donor in sorted({*here, *there}):
        old, new = here.get(donor), there.get(donor)
        alike = [renamed.get(name, "" if name in taken else name) for name in old or ()]
        if alike == list(new or ()):
            continue
        yield Change(what=f"KV of L{donor} goes", before=_way(old), after=_way(new))


def _crossings(topology: Topology) -> dict[int, tuple[str, ...]]:
    """The chunk of each layer whose KV leaves it, then those that read it."""
    home = {at: chunk.name for chunk in decode_chunks(topology) for at in chunk.layers}
    ways: dict[int, tuple[str, ...]] = {}
    for block in topology.blocks:
        donor = block.kv.donor
        if donor is not None and home.get(donor) != home.get(block.index):
            way = ways.get(donor, (home.get(donor, "no chunk"),))
            ways[donor] = tuple(dict.fromkeys((*way, home.get(block.index, "no chunk"))))
    return ways


def _way(chunks: tuple[str, ...] | None) -> str | None:
    if chunks is None:
        return None
    owner, *readers = chunks
    return f"{owner} to {', '.join(readers)}"


def _functions(topology: Topology) -> dict[str, str]:
    return {one.name: _function(one) for one in topology.functions}


def _function(one: Function) -> str:
    words = [f"{one.tokens} token{'s' * (one.tokens != 1)}"]
    words += [f"write = {one.write}"] if one.tokens > 1 else []
    words += ["package = separate"] if one.separate else []
    words += [f"unit = {one.unit}"] if one.unit else []
    if one.chunks is not None:
        words.append("chunks " + ", ".join(f"{c.name} = {held(c)}" for c in one.chunks))
    return "; ".join(words)


def _quantisation(before: Topology, after: Topology) -> Iterator[Change]:
    """Schemes that differ, roles and layers of one change together."""
    here, there = _schemes(before), _schemes(after)
    found = {
        one: (here.get(one), there.get(one))
        for one in dict.fromkeys((*here, *there))
        if here.get(one) != there.get(one)
    }
    by_role: dict[tuple[str, str | None, str | None], list[int]] = {}
    for (role, layer), (was, now) in found.items():
        by_role.setdefault((role, was, now), []).extend([] if layer is None else [layer])
    merged: dict[tuple[tuple[int, ...], str | None, str | None], list[str]] = {}
    for (role, was, now), found_in in by_role.items():
        merged.setdefault((tuple(found_in), was, now), []).append(role)
    for (layers, was, now), roles in merged.items():
        of = f" of {listed(layers)}" if layers else ""
        yield Change(what=", ".join(roles) + of, before=was, after=now)


def _schemes(topology: Topology) -> dict[tuple[str, int | None], str]:
    return {
        (one.role, one.layer): " + ".join(map(_scheme, one.schemes)) for one in topology.recipes
    }


def _scheme(one: Scheme) -> str:
    inside = ", ".join(f"{name} = {value}" for name, value in one.arguments)
    return f"{one.name}({inside})" if inside else one.name


def _budgets(topology: Topology) -> dict[str, str]:
    return {
        f"{one.measure} {one.relation}": amount(one.measure, one.value) for one in topology.budgets
    }


def _verdict(topology: Topology) -> dict[str, str]:
    verdict = topology.verdict
    date = f" on {verdict.date}" if verdict.date else ""
    return {"status": f"{verdict.state}{date}", **dict(verdict.lines)}
