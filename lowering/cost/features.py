"""What a chunk moves and computes in one call: the numbers that milliseconds are fitted on.

All of it comes from the resolved topology and the checkpoint's layer table, so that layouts without
a lowering have a cost too. Bytes are plain counts; a megabyte is 1,000,000 of them.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from itertools import accumulate

from attrs import frozen

from topoc.dsl.measure import cache_bytes
from topoc.dsl.model import Block, Chunk, Function, Kv, Store, Topology, Write
from topoc.dsl.plain import Plain
from topoc.lowering.cost.stored import element_bytes, layer_bytes

_FP16 = 2  # bytes
_PAIR = 2  # K and V
_MB = 1e6


@frozen(kw_only=True, eq=False, repr=False)
class Features(Plain):
    """One chunk in one call of a function. Bytes, tokens and elements of weight matrices."""

    weights: int  # streamed once a call, as stored: layers, projections, the head
    kv_in: int  # caches and shared KV that enter as tensors
    kv_out: int  # caches, fresh rows and shared KV that leave as tensors
    attended: int  # K and V that one query reads
    state: int  # caches that live in states
    elements: int  # of the matrices that every token passes through
    tokens: int
    stored: int  # weights and tables of the package
    loaded: int  # the same in fp16, as a device expands them

    @property
    def kv(self) -> int:
        """All KV that crosses the chunk's walls."""
        return self.kv_in + self.kv_out

    @property
    def bits(self) -> float:
        """Bits an element of what is streamed; 0 where nothing is."""
        return 16 * self.stored / self.loaded if self.loaded else 0.0

    @property
    def work(self) -> float:
        """Products beyond those of the first token, in thousand millions."""
        return self.elements * (self.tokens - 1) / 1e9

    def megabytes(self, name: str) -> float:
        """One of the byte counts in MB."""
        return int(getattr(self, name)) / _MB


@frozen(kw_only=True, eq=False, repr=False)
class _Donor(Plain):
    """KV of one layer that other layers read: its readers, and the bytes at either wall."""

    at: int
    readers: tuple[int, ...]
    leaves: int
    enters: int


@frozen(kw_only=True, eq=False, repr=False)
class Tally(Plain):
    """Running sums over the layers of one function, so that any run of layers costs one step."""

    topology: Topology
    function: Function
    sums: dict[str, tuple[int, ...]]
    donors: tuple[_Donor, ...]
    end: int  # one past the last layer that the function runs

    def run(self, first: int, last: int, parts: Sequence[str]) -> Features:
        """The features of a chunk of layers `first` to `last` (none if last < first)."""
        found = {name: sums[last + 1] - sums[first] for name, sums in self.sums.items()}
        leaves, enters = self._shared(first, last) if last >= first else (0, 0)
        extra = [_part(self.topology, self.function, kind) for kind in parts]
        return Features(
            weights=found["stored"] + sum(one.streamed for one in extra),
            kv_in=found["kv_in"] + enters,
            kv_out=found["kv_out"] + leaves,
            attended=found["attended"],
            state=found["state"],
            elements=found["elements"] + sum(one.worked for one in extra),
            tokens=self.function.tokens,
            stored=found["stored"] + sum(one.stored for one in extra),
            loaded=_FP16 * (found["elements"] + sum(one.elements for one in extra)),
        )

    def chunk(self, chunk: Chunk) -> Features:
        """The features of one chunk of the function's list."""
        layers = chunk.layers
        first, last = (layers[0], layers[-1]) if layers else (0, -1)
        kinds = [one.kind for one in chunk.parts if one.head is None or one.head.mode != "hidden"]
        return self.run(first, last, kinds)

    def _shared(self, first: int, last: int) -> tuple[int, int]:
        """Bytes of shared KV that leave and enter a run of layers."""
        leaves = enters = 0
        for donor in self.donors:
            if first <= donor.at <= last:
                leaves += donor.leaves if donor.readers[-1] > last else 0
            elif donor.at < first:
                inside = bisect_right(donor.readers, last) > bisect_left(donor.readers, first)
                enters += donor.enters if inside else 0
        return leaves, enters


@frozen(kw_only=True, eq=False, repr=False)
class _Extra(Plain):
    """What a part that is no layer adds."""

    elements: int = 0
    stored: int = 0
    streamed: int = 0
    worked: int = 0


def _part(topology: Topology, function: Function, kind: str) -> _Extra:
    table = topology.layers
    if kind == "embed":  # rows are looked up: the table is stored, and one row is read
        elements = table.embed_parameters
        return _Extra(elements=elements, stored=round(elements * _FP16))
    if kind in {"ple", "head"}:
        elements = table.ple_parameters if kind == "ple" else table.head_parameters
        stored = round(elements * element_bytes(topology.recipe(kind)))
        every = kind == "ple" or function.role == "verify"  # a prefill hands the head one row
        worked = elements if every else 0
        return _Extra(elements=elements, stored=stored, streamed=stored, worked=worked)
    return _Extra()


def tally(topology: Topology, function: Function) -> Tally:
    """The running sums of one function."""
    covered = [at for chunk in topology.chunks_of(function) for at in chunk.layers]
    blocks = topology.blocks
    columns = {
        "stored": layer_bytes(topology),
        "elements": [one.parameters for one in topology.layers.layers],
        "kv_in": [_enters(topology, one) for one in blocks],
        "kv_out": [_leaves(topology, function, one) for one in blocks],
        "attended": [_attended(topology, one) for one in blocks],
        "state": [_state(topology, one) for one in blocks],
    }
    end = max(covered, default=-1) + 1
    return Tally(
        topology=topology,
        function=function,
        sums={name: (0, *accumulate(column)) for name, column in columns.items()},
        donors=tuple(_donors(topology, function, end)),
        end=end,
    )


def features(topology: Topology, function: Function) -> tuple[Features, ...]:
    """The features of every chunk that a function runs, in order."""
    counted = tally(topology, function)
    return tuple(counted.chunk(chunk) for chunk in topology.chunks_of(function))


def _donors(topology: Topology, function: Function, end: int) -> list[_Donor]:
    readers: dict[int, list[int]] = {}
    for block in topology.blocks[:end]:
        if block.kv.donor is not None:
            readers.setdefault(block.kv.donor, []).append(block.index)
    return [_donor(topology, function, at, tuple(found)) for at, found in readers.items()]


def _donor(topology: Topology, function: Function, at: int, readers: tuple[int, ...]) -> _Donor:
    """What one layer's KV costs at the walls.

    Where the host writes, a reader's chunk takes the cache and the fresh rows, and nothing more
    leaves; else the donor's chunk hands the written view on, in rows without padding.
    """
    block, row = topology.blocks[at], _row(topology, at)
    if _by_host(block.kv, function):
        enters = cache_bytes(topology, block) + row * function.tokens
        return _Donor(at=at, readers=readers, leaves=0, enters=enters)
    view = row * block.kv.slots
    return _Donor(at=at, readers=readers, leaves=view, enters=view)


def _row(topology: Topology, at: int) -> int:
    layer = topology.layers.layers[at]
    return _PAIR * layer.kv_heads * layer.head_dim * _FP16


def _by_host(kv: Kv, function: Function) -> bool:
    """Whether the host stores the rows of a call."""
    if kv.store is Store.STATE:
        return False
    return kv.write is Write.APPEND or (function.tokens > 1 and function.write == "host")


def _enters(topology: Topology, block: Block) -> int:
    owns = block.kv.donor is None and block.kv.store is Store.IO
    return cache_bytes(topology, block) if owns else 0


def _leaves(topology: Topology, function: Function, block: Block) -> int:
    if block.kv.donor is not None or block.kv.store is Store.STATE:
        return 0
    rows = function.tokens if _by_host(block.kv, function) else None
    return cache_bytes(topology, block, positions=rows)


def _attended(topology: Topology, block: Block) -> int:
    """K and V of the positions that a query sees, in rows without padding."""
    window = block.attention.window
    seen = topology.context if window is None else min(window, topology.context)
    return _row(topology, block.index) * seen


def _state(topology: Topology, block: Block) -> int:
    kept = block.kv.donor is None and block.kv.store is Store.STATE
    return cache_bytes(topology, block) if kept else 0
