"""The KV caches of a chunk: which layers share a tensor, how a call reads and writes it."""

from collections import Counter
from typing import Literal

from attrs import define, evolve, field, frozen

from topoc.dsl.model import Chunk, Kv, Topology, Write
from topoc.dsl.plain import Plain
from topoc.lowering.architecture import Architecture
from topoc.lowering.build.layer import Keys
from topoc.lowering.build.scope import Scope
from topoc.lowering.ir import DType, Value
from topoc.lowering.manifest import Buffer, Sink, SlotRule, Source
from topoc.lowering.ops.cache import (
    AppendRows,
    BlendIn,
    CacheRow,
    PadRow,
    ShiftIn,
    StackRows,
)

MASK_FILL = -1.0e4
"""Finite, so that a padding row stays finite in fp16 too."""


@frozen(kw_only=True, eq=False, repr=False)
class Cache(Plain):
    """One cache tensor of a chunk, and the layers whose rows it holds, in order."""

    name: str  # sliding, full; a suffix tells further ones of the same kind apart
    layers: tuple[int, ...]
    window: int | None
    kv: Kv
    heads: int
    width: int

    @property
    def rule(self) -> SlotRule:
        """Where a position stands."""
        return "shift" if self.kv.write is Write.SHIFT else "modulo"

    @property
    def shape(self) -> tuple[int, int, int, int]:
        """(rows of layers, KV heads, slots, width)."""
        return len(self.layers), self.heads, self.kv.slots, self.width

    def buffer(self, chunk: str, holds: Literal["k", "v"], dtype: DType) -> Buffer:
        """How the manifest tells it."""
        return Buffer(
            id=f"{chunk}.{holds}_{self.name}",
            shape=self.shape,
            dtype=dtype.float_name,
            holds=holds,
            layers=self.layers,
            rule=self.rule,
            window=self.window,
        )


def caches_of(topology: Topology, architecture: Architecture, chunk: Chunk) -> tuple[Cache, ...]:
    """The caches of a chunk, one for each kind of layer that stores alike."""
    widest = max(spec.head_dim for spec in architecture.layers)
    groups: dict[Cache, list[int]] = {}
    for index in chunk.layers:
        block, spec = topology.blocks[index], architecture.layers[index]
        kv = block.kv
        alike = Cache(
            name=spec.kind.value,
            layers=(),
            window=block.attention.window,
            kv=kv,
            heads=kv.padded_heads or spec.kv_heads,
            width=widest if kv.padded else spec.head_dim,
        )
        groups.setdefault(alike, []).append(index)
    return _told_apart([evolve(cache, layers=tuple(rows)) for cache, rows in groups.items()])


def _told_apart(caches: list[Cache]) -> tuple[Cache, ...]:
    """Caches of one kind that store unlike each other get numbers."""
    seen: Counter[str] = Counter()
    named = []
    for cache in caches:
        seen[cache.name] += 1
        nth = seen[cache.name]
        named.append(cache if nth == 1 else evolve(cache, name=f"{cache.name}_{nth}"))
    return tuple(named)


@define(eq=False)
class CacheAccess:
    """How one call of T tokens reads and writes one cache.

    A call of one token writes as the kv block says; a call of several attends over what the
    cache held and its own rows, and hands the rows to the host.
    """

    cache: Cache
    chunk: str
    tokens: int
    _stored: dict[str, list[Value]] = field(factory=lambda: {"k": [], "v": []})

    @property
    def in_graph(self) -> bool:
        """Whether the graph itself puts the new row into the cache."""
        return self.tokens == 1 and self.cache.kv.write in {Write.SHIFT, Write.BLEND}

    def attend(self, scope: Scope, k: Value, v: Value) -> Keys:
        """The keys of the next layer of the cache, given the call's own rows of it."""
        return Keys(self._seen(scope, "k", k), self._seen(scope, "v", v), self._mask(scope))

    def export(self, scope: Scope) -> None:
        """Hand the whole cache, or the call's rows, to the host."""
        kind: Literal["buffer", "rows"] = "buffer" if self.in_graph else "rows"
        ending = "out" if self.in_graph else "rows"
        for holds, stored in self._stored.items():
            name = f"{holds}_{self.cache.name}"
            rows = tuple(self._padded(scope, value) for value in stored)
            stacked = scope.bind(f"{name}_{ending}", StackRows(rows))
            scope.output(stacked, Sink(kind=kind, name=f"{self.chunk}.{name}"))

    def _seen(self, scope: Scope, holds: str, rows: Value) -> Value:
        """The rows that queries see; what is to be stored is kept for `export`."""
        name = f"{holds}_{self.cache.name}"
        source = Source(kind="buffer", name=f"{self.chunk}.{name}")
        feature = scope.input(name, self.cache.shape, source)
        _, heads, _, width = rows.shape
        row = len(self._stored[holds])
        old = scope.bind(f"{holds}_old", CacheRow(feature, row, heads, width))
        op = self._write(scope, old, rows) if self.in_graph else AppendRows(old, rows)
        seen = scope.bind(f"{holds}_seen", op)
        self._stored[holds].append(seen if self.in_graph else rows)
        return seen

    def _write(self, scope: Scope, old: Value, rows: Value) -> ShiftIn | BlendIn:
        if self.cache.kv.write is Write.SHIFT:
            return ShiftIn(old, rows)
        slots = self.cache.kv.slots
        source = Source(kind="slot", slots=slots, rule=self.cache.rule)
        return BlendIn(old, rows, scope.input(f"write_s{slots}", (1, 1, slots, 1), source))

    def _mask(self, scope: Scope) -> Value:
        cache, slots = self.cache, self.cache.kv.slots
        source = Source(
            kind="mask",
            window=cache.window,
            slots=slots,
            rule=cache.rule,
            keys="cache" if self.in_graph else "cache+call",
            fill=MASK_FILL,
        )
        name = "mask_full" if cache.window is None else f"mask_w{cache.window}"
        seen = slots if self.in_graph else slots + self.tokens
        return scope.input(name, (1, 1, self.tokens, seen), source)

    def _padded(self, scope: Scope, value: Value) -> Value:
        if not self.cache.kv.padded:
            return value
        return scope.bind(f"{value.name}_padded", PadRow(value, self.cache.heads, self.cache.width))
