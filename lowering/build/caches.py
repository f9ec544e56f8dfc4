"""How one call of T tokens reads and writes the caches of one chunk.

A call of one token writes as the kv block says, and its queries see the cache after that. A call
of several attends over what the cache held and its own rows; then the host stores the rows, or
the graph where the function says `write = graph`.
"""

from typing import Literal

from attrs import define, field

from topoc.dsl.model import Block, Chunk, Function, Topology, Write
from topoc.lowering.build.handling import Handling, handling, kv_value, tries_drafts
from topoc.lowering.build.layer import Keys
from topoc.lowering.build.layout import Cache, Holds, Layout
from topoc.lowering.build.scope import Scope
from topoc.lowering.ir import DType, Value
from topoc.lowering.manifest import Sink, Source
from topoc.lowering.ops.cache import (
    AppendRows,
    BlendIn,
    CacheRow,
    PadRow,
    ShiftIn,
    StackRows,
    StateRow,
    WriteState,
)

MASK_FILL = -1.0e4
"""Finite, so that a padding row stays finite in fp16 too."""

HOLDS: tuple[Holds, Holds] = ("k", "v")

Pair = tuple[Value, Value]
"""Keys and values."""


@define(eq=False)
class Caches:
    """The caches of one chunk while its program grows."""

    topology: Topology
    layout: Layout
    function: Function
    chunk: Chunk
    scope: Scope
    _rows: dict[int, Pair] = field(factory=dict)  # the call's own, of each owner
    _seen: dict[int, Pair] = field(factory=dict)  # what queries attend over, of each donor
    _stored: dict[int, Pair] = field(factory=dict)  # what the host takes, of each owner
    _states: dict[str, Value] = field(factory=dict)  # as the last write left them

    def attend(self, block: Block, k: Value, v: Value) -> Keys:
        """The keys of an owner, given the call's own rows (1, G, T, D)."""
        cache, at = self.layout.of(block.index)
        self._rows[block.index] = k, v
        way = handling(self.topology.features, self.function, cache.members[at])
        seen = self._in_state(cache, at, way) if cache.is_state else self._in_io(cache, at, way)
        self._seen[block.index] = seen
        return Keys(*seen, self._mask(block, way))

    def shared(self, block: Block, donor: int) -> Keys:
        """The keys of a layer that reads another's cache."""
        cache, at = self.layout.of(donor)
        way = handling(self.topology.features, self.function, cache.members[at])
        if donor not in self._seen:
            self._seen[donor] = self._imported(donor, cache, at, way)
        return Keys(*self._seen[donor], self._mask(block, way))

    def export(self) -> None:
        """Hand caches or rows to the host, and what later chunks read to them."""
        for cache in self.layout.caches:
            self._hand_over(cache)
        for donor in self._read_later():
            self._export(donor)

    def _in_io(self, cache: Cache, at: int, way: Handling) -> Pair:
        rows, member = self._rows[way.member.layer], cache.members[at]
        old = self._old(cache, at)
        written = rows
        if way.writes or way.sees == "cache":
            names = ("k_seen", "v_seen") if way.sees == "cache" else ("k_new", "v_new")
            written = self._each(names, old, rows, way)
        self._stored[member.layer] = written if way.writes else rows
        return written if way.sees == "cache" else self._appended(old, rows)

    def _in_state(self, cache: Cache, at: int, way: Handling) -> Pair:
        rows, layer = self._rows[way.member.layer], way.member.layer
        old = None
        if way.sees == "cache+call":
            old = self._state_rows(cache, at, "old")
            appended = self._appended(old, rows)
        if way.writes:
            self._write_state(cache, at, way, old)
        else:
            self._stored[layer] = rows
        return appended if way.sees == "cache+call" else self._state_rows(cache, at, "seen")

    def _write_state(self, cache: Cache, at: int, way: Handling, old: Pair | None) -> None:
        """One write for K and V; a shift or a blend writes the whole row anew."""
        rows = self._rows[way.member.layer]
        index: tuple[Value, ...] = ()
        if way.member.kv.write is Write.SLICE:
            source = Source(kind="index", slots=way.member.kv.slots, rule=way.member.rule)
            name = f"index_s{way.member.kv.slots}"
            index = (self.scope.input(name, (1,), source, DType.INT32),)
        else:
            old = old or self._state_rows(cache, at, "old")
            rows = self._each(("k_new", "v_new"), old, rows, way)
        stacked = self.scope.bind("kv_rows", StackRows(rows))
        state = self._state(cache)
        new = self.scope.bind("kv_written", WriteState(state, stacked, 2 * at, index))
        self._states[cache.buffer_id("k")] = new

    def _each(self, names: tuple[str, str], old: Pair, rows: Pair, way: Handling) -> Pair:
        """Both cache rows after a shift or a blend."""
        k, v = (
            self.scope.bind(name, self._written(was, new, way))
            for name, was, new in zip(names, old, rows, strict=True)
        )
        return k, v

    def _written(self, old: Value, rows: Value, way: Handling) -> ShiftIn | BlendIn:
        if way.member.kv.write is Write.SHIFT:
            return ShiftIn(old, rows)
        slots = way.member.kv.slots
        source = Source(kind="slot", slots=slots, rule=way.member.rule)
        slot = self.scope.input(f"write_s{slots}", (1, 1, slots, way.tokens), source)
        return BlendIn(old, rows, slot)

    def _appended(self, old: Pair, rows: Pair) -> Pair:
        k, v = (
            self.scope.bind(f"{holds}_seen", AppendRows(was, new))
            for holds, was, new in zip(HOLDS, old, rows, strict=True)
        )
        return k, v

    def _old(self, cache: Cache, at: int) -> Pair:
        """A layer's rows of tensors that the host feeds."""
        member, whole = cache.members[at], cache.shape(len(cache.members))
        k, v = (
            self.scope.bind(
                f"{holds}_old",
                CacheRow(
                    self.scope.input(
                        f"{holds}_{cache.name}",
                        whole,
                        Source(kind="buffer", name=cache.buffer_id(holds)),
                    ),
                    at,
                    member.heads,
                    member.width,
                ),
            )
            for holds in HOLDS
        )
        return k, v

    def _state(self, cache: Cache) -> Value:
        """The state as the last write left it."""
        name = cache.buffer_id("k")
        if name not in self._states:
            shape = cache.shape(2 * len(cache.members))
            source = Source(kind="state", name=name)
            self._states[name] = self.scope.input(cache.name, shape, source)
        return self._states[name]

    def _state_rows(self, cache: Cache, at: int, when: str) -> Pair:
        """A layer's rows of a state, read now."""
        member, state = cache.members[at], self._state(cache)
        k, v = (
            self.scope.bind(
                f"{holds}_{when}",
                StateRow(state, 2 * at + nth, member.heads, member.kv.slots, member.width),
            )
            for nth, holds in enumerate(HOLDS)
        )
        return k, v

    def _imported(self, donor: int, cache: Cache, at: int, way: Handling) -> Pair:
        """What the donor's queries saw."""
        member = cache.members[at]
        by_host = _takes_buffer(cache, way)
        slots = way.tokens if by_host else way.seen_slots
        k, v = (
            self.scope.input(
                f"{holds}_l{donor}",
                (1, member.heads, slots, member.width),
                Source(kind="value", name=kv_value(donor, holds)),
            )
            for holds in HOLDS
        )
        return self._appended(self._old(cache, at), (k, v)) if by_host else (k, v)

    def _read_later(self) -> list[int]:
        """The owners of this chunk that a later chunk of the function reads."""
        chunks = self.topology.chunks_of(self.function)
        later = chunks[chunks.index(self.chunk) + 1 :]
        readers = (self.topology.blocks[index] for one in later for index in one.layers)
        donors = {block.kv.donor for block in readers}
        return [layer for layer in self._rows if layer in donors]

    def _export(self, donor: int) -> None:
        cache, at = self.layout.of(donor)
        way = handling(self.topology.features, self.function, cache.members[at])
        pair = self._rows[donor] if _takes_buffer(cache, way) else self._seen[donor]
        for holds, value in zip(HOLDS, pair, strict=True):
            sink = Sink(kind="value", name=kv_value(donor, holds))
            self.scope.output(value, sink, f"{holds}_l{donor}_out")

    def _hand_over(self, cache: Cache) -> None:
        """The whole caches, or the call's rows, of the layers that this chunk holds."""
        mine = [at for at, m in enumerate(cache.members) if m.layer in self._stored]
        if not mine:
            return
        members = [cache.members[at] for at in mine]
        written = handling(self.topology.features, self.function, members[0]).writes
        kind: Literal["buffer", "rows"] = "buffer" if written else "rows"
        ending = "out" if written else "rows"
        pairs = [self._stored[member.layer] for member in members]
        stacks: list[tuple[str, Holds, int, list[Value]]]
        called = self._called(cache)
        if cache.is_state:
            stacks = [(called, "k", 2 * mine[0], [one for pair in pairs for one in pair])]
        else:
            stacks = [
                (f"{holds}_{called}", holds, mine[0], [pair[nth] for pair in pairs])
                for nth, holds in enumerate(HOLDS)
            ]
        for name, holds, row, values in stacks:
            rows = tuple(self._padded(cache, value) for value in values)
            stacked = self.scope.bind(f"{name}_{ending}", StackRows(rows))
            self.scope.output(stacked, Sink(kind=kind, name=cache.buffer_id(holds), row=row))

    def _called(self, cache: Cache) -> str:
        """Its name, with its chunk's where a list that is cut elsewhere meets two of that name."""
        held = (self.layout.of(layer)[0] for layer in self._stored)
        alone = {one.chunk for one in held if one.name == cache.name} == {cache.chunk}
        return cache.name if alone else f"{cache.name}_{cache.chunk}"

    def _mask(self, block: Block, way: Handling) -> Value:
        """Who sees what of a cache, by the reader's own window."""
        window, member = block.attention.window, way.member
        source = Source(
            kind="mask",
            window=window,
            slots=member.kv.slots,
            rule=member.rule,
            keys=way.sees,
            fill=MASK_FILL,
        )
        name = "mask_full" if window is None else f"mask_w{window}"
        return self.scope.input(name, (1, 1, way.tokens, way.seen_slots), source)

    def _padded(self, cache: Cache, value: Value) -> Value:
        drafts = tries_drafts(self.topology.features, self.function)
        if drafts or (value.shape[1], value.shape[3]) == (cache.heads, cache.width):
            return value
        return self.scope.bind(f"{value.name}_padded", PadRow(value, cache.heads, cache.width))


def _takes_buffer(cache: Cache, way: Handling) -> bool:
    """Whether a reader in another chunk takes the donor's buffer, and only the new rows travel."""
    return not way.writes and way.sees == "cache+call" and not cache.is_state
