"""Where each layer's keys and values are kept: the caches of a topology and their rows."""

from collections import Counter
from typing import Literal

from attrs import evolve, frozen

from topoc.dsl.model import Chunk, Function, Kv, Store, Topology, Write
from topoc.dsl.plain import Plain
from topoc.lowering.architecture import Architecture
from topoc.lowering.ir import DType
from topoc.lowering.manifest import Buffer, Row, SlotRule

Holds = Literal["k", "v"]


@frozen(kw_only=True, eq=False, repr=False)
class Member(Plain):
    """One layer of a cache, in its own geometry."""

    layer: int
    kv: Kv
    heads: int
    width: int
    window: int | None

    @property
    def rule(self) -> SlotRule:
        """Where a position stands."""
        return "shift" if self.kv.write is Write.SHIFT else "modulo"

    def row(self, holds: Holds) -> Row:
        """How the manifest tells it."""
        return Row(
            layer=self.layer,
            holds=holds,
            heads=self.heads,
            slots=self.kv.slots,
            width=self.width,
            rule=self.rule,
            window=self.window,
        )


@frozen(kw_only=True, eq=False, repr=False)
class Cache(Plain):
    """Layers of one chunk that are kept together: two tensors, or one state."""

    chunk: str
    name: str  # sliding, full, or the name of a state; a suffix tells further ones apart
    heads: int
    slots: int
    width: int
    members: tuple[Member, ...]

    @property
    def is_state(self) -> bool:
        """Whether the package keeps it."""
        return self.members[0].kv.store is Store.STATE

    def buffers(self, dtype: DType) -> tuple[Buffer, ...]:
        """How the manifest tells it: K and V apart, or their rows in turn in a state.

        A state is fp16 whatever the precision of the build, for there is no other.
        """
        if self.is_state:
            rows = tuple(member.row(holds) for member in self.members for holds in _BOTH)
            return (self._buffer(self.buffer_id("k"), rows, DType.FP16, "state"),)
        return tuple(
            self._buffer(
                self.buffer_id(holds), tuple(m.row(holds) for m in self.members), dtype, "io"
            )
            for holds in _BOTH
        )

    def buffer_id(self, holds: Holds) -> str:
        """The id of the buffer that has the keys or the values."""
        return f"{self.chunk}.{self.name}" if self.is_state else f"{self.chunk}.{holds}_{self.name}"

    def shape(self, rows: int) -> tuple[int, int, int, int]:
        """(rows, KV heads, slots, width)."""
        return rows, self.heads, self.slots, self.width

    def _buffer(
        self, name: str, rows: tuple[Row, ...], dtype: DType, store: Literal["io", "state"]
    ) -> Buffer:
        shape = self.shape(len(rows))
        return Buffer(id=name, shape=shape, dtype=dtype.float_name, store=store, rows=rows)


_BOTH: tuple[Holds, Holds] = ("k", "v")


@frozen(kw_only=True, eq=False, repr=False)
class Layout(Plain):
    """The caches of a topology, cut as the chunks of its decode function are."""

    caches: tuple[Cache, ...]

    def of(self, layer: int) -> tuple[Cache, int]:
        """The cache of a layer that owns one, and its place among the members."""
        for cache in self.caches:
            for at, member in enumerate(cache.members):
                if member.layer == layer:
                    return cache, at
        raise KeyError(layer)


def layout_of(topology: Topology, architecture: Architecture) -> Layout:
    """Where each owner's rows stand, whatever function runs."""
    functions = sorted(topology.functions, key=_decode_first)
    chunks = topology.chunks_of(functions[0])
    return Layout(
        caches=tuple(cache for one in chunks for cache in _caches(topology, architecture, one))
    )


def _decode_first(function: Function) -> bool:
    return function.role != "decode"


def _caches(topology: Topology, architecture: Architecture, chunk: Chunk) -> tuple[Cache, ...]:
    """The caches of a chunk, one for each kind of layer that stores alike."""
    widest = max(spec.head_dim for spec in architecture.layers)
    groups: dict[object, list[Member]] = {}
    for index in chunk.layers:
        block, spec = topology.blocks[index], architecture.layers[index]
        if block.kv.donor is None:
            member = Member(
                layer=index,
                kv=block.kv,
                heads=spec.kv_heads,
                width=spec.head_dim,
                window=block.attention.window,
            )
            alike = evolve(member, layer=-1)
            key = block.kv.state or (spec.kind.value, alike)
            groups.setdefault(key, []).append(member)
    return _told_apart(
        [
            Cache(
                chunk=chunk.name,
                name=key if isinstance(key, str) else _kind(topology, members),
                heads=max(m.kv.padded_heads or m.heads for m in members),
                slots=max(m.kv.slots for m in members),
                width=max(widest if m.kv.padded else m.width for m in members),
                members=tuple(members),
            )
            for key, members in groups.items()
        ]
    )


def _kind(topology: Topology, members: list[Member]) -> str:
    return topology.layers.layers[members[0].layer].kind.value


def _told_apart(caches: list[Cache]) -> tuple[Cache, ...]:
    """Caches of one kind that store unlike each other get numbers."""
    seen: Counter[str] = Counter()
    named = []
    for cache in caches:
        seen[cache.name] += 1
        nth = seen[cache.name]
        named.append(cache if nth == 1 else evolve(cache, name=f"{cache.name}_{nth}"))
    return tuple(named)
