"""What a budget measures, where the topology alone can tell: layers, weights, KV bytes."""

from attrs import frozen

from topoc.dsl.model import Block, Chunk, Kv, Store, Topology, Write
from topoc.dsl.plain import Plain

_FP16 = 2  # bytes
_PAIR = 2  # K and V


@frozen(eq=False, repr=False)
class Measured(Plain):
    """A value, and the chunk that it belongs to."""

    value: float
    chunk: Chunk | None = None


def measure(topology: Topology, name: str) -> tuple[Measured, ...] | None:
    """The values of a measure, or None where it takes lowering or a device to know."""
    per_chunk = {
        "layers per chunk": lambda chunk: len(chunk.layers),
        "fp16 per chunk": lambda chunk: fp16_bytes(topology, chunk),
        "states per chunk": lambda chunk: len(states(topology, chunk)),
    }
    if name in per_chunk:
        return tuple(Measured(per_chunk[name](one), one) for one in all_chunks(topology))
    whole = {
        "chunks": lambda: len(decode_chunks(topology)),
        "kv bytes": lambda: kv_bytes(topology),
        "kv io per step": lambda: kv_io(topology),
    }
    return (Measured(whole[name]()),) if name in whole else None


def all_chunks(topology: Topology) -> tuple[Chunk, ...]:
    """The main chunk list, and then those of functions with lists of their own."""
    own = (chunk for function in topology.functions for chunk in function.chunks or ())
    return (*topology.chunks, *own)


def decode_chunks(topology: Topology) -> tuple[Chunk, ...]:
    """The chunks that one decode step runs."""
    for function in topology.functions:
        if function.role == "decode":
            return topology.chunks_of(function)
    return topology.chunks


def fp16_bytes(topology: Topology, chunk: Chunk) -> int:
    """A chunk's weights as they are loaded: two bytes an element, whatever is on disk."""
    table = topology.layers
    elements = sum(table.layers[at].parameters for at in chunk.layers)
    heads = any(part.head is not None and part.head.mode != "hidden" for part in chunk.parts)
    elements += table.head_parameters if heads else 0
    elements += table.embed_parameters if chunk.has("embed") else 0
    elements += table.ple_parameters if chunk.has("ple") else 0
    return elements * _FP16


def states(topology: Topology, chunk: Chunk) -> tuple[str, ...]:
    """The names of the states that a chunk keeps, in order."""
    kept = (topology.blocks[at].kv for at in chunk.layers)
    return tuple(dict.fromkeys(kv.state for kv in kept if kv.state is not None))


def cache_bytes(topology: Topology, block: Block, *, positions: int | None = None) -> int:
    """K and V of one owner, padded as its rows are; of `positions` slots if given."""
    layer, kv = topology.layers.layers[block.index], block.kv
    widest = max(one.head_dim for one in topology.layers.layers)
    width = widest if kv.padded else layer.head_dim
    heads = (kv.padded_heads or layer.kv_heads) if kv.padded else layer.kv_heads
    slots = kv.slots if positions is None else positions
    return _PAIR * heads * slots * width * _FP16


def kv_bytes(topology: Topology) -> int:
    """All caches together."""
    return sum(cache_bytes(topology, one) for one in topology.blocks if one.kv.donor is None)


def kv_io(topology: Topology) -> int:
    """All KV that crosses chunk walls in one decode step, donor exports at both ends."""
    chunks = decode_chunks(topology)
    own = sum(_own_traffic(topology, topology.blocks[at]) for one in chunks for at in one.layers)
    return own + sum(_export_traffic(topology, one, chunks) for one in topology.blocks)


def _own_traffic(topology: Topology, block: Block) -> int:
    """What one owner's cache costs at its own chunk's wall."""
    if block.kv.donor is not None or block.kv.store is Store.STATE:
        return 0
    inward = cache_bytes(topology, block)
    return inward + cache_bytes(topology, block, positions=1 if _by_host(block.kv) else None)


def _by_host(kv: Kv) -> bool:
    return kv.write is Write.APPEND and kv.store is Store.IO


def _export_traffic(topology: Topology, donor: Block, chunks: tuple[Chunk, ...]) -> int:
    """What a donor's KV costs on its way to chunks that read it."""
    readers = [
        chunk
        for chunk in chunks
        if donor.index not in chunk.layers
        and any(topology.blocks[at].kv.donor == donor.index for at in chunk.layers)
    ]
    if not readers:
        return 0
    layer = topology.layers.layers[donor.index]
    row = _PAIR * layer.kv_heads * layer.head_dim * _FP16
    if _by_host(donor.kv):
        return len(readers) * (cache_bytes(topology, donor) + row)
    return (1 + len(readers)) * row * donor.kv.slots
