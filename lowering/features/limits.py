"""What a topology may ask for that the features of `coreml_llm` can't say, line by line.

The runtime behind them knows one cache, one mask and one donor for each kind of layer, combines no
per-layer vectors itself, and ends in a token.
"""

from collections.abc import Iterator

from topoc.dsl.diagnostic import Diagnostic, Place, error
from topoc.dsl.model import COREML_LLM, Block, Chunk, Kind, Kv, Store, Topology, Write
from topoc.dsl.source import Span
from topoc.lowering.architecture import Architecture
from topoc.lowering.rescale import Scales

_RUNTIME = "the runtime of `coreml_llm`"

Fault = tuple[str, Span | None]


def limits(topology: Topology) -> Iterator[Diagnostic]:
    """One error for each thing that the runtime has no names for, or that has no lowering here."""
    found = [
        *_functions(topology),
        *_chunks(topology),
        *_tables(topology),
        *_caches(topology),
        *_masks(topology),
        *_donors(topology),
        *_sharing(topology),
    ]
    for words, span in dict.fromkeys(found):
        at = span or topology.span or Place(topology.name)
        help_ = "leave it out, or write `features topoc`"
        yield error("features.cannot-express", words, at, help=help_)


def misfits(topology: Topology, architecture: Architecture, scales: Scales) -> Iterator[Diagnostic]:
    """One error for each thing in the checkpoint that keeps it from such a runtime."""
    if topology.features != COREML_LLM:
        return
    found, made = [], architecture.per_layer
    other = [scale for scale in scales.residual if scale != 1.0]
    if other:
        found.append(f"feeds embeddings unscaled, and fp16 holds this stream times {other[0]:g}")
    if made is not None and made.vocabulary < architecture.vocabulary:
        rows = f"{made.vocabulary} of {architecture.vocabulary} tokens have one"
        found.append(f"looks for a per-layer row of every token, and {rows}")
    for words in found:
        at = topology.span or Place(topology.name)
        help_ = "write `features topoc`"
        yield error("features.cannot-express", f"{_RUNTIME} {words}", at, help=help_)


def _functions(topology: Topology) -> Iterator[Fault]:
    for one in topology.functions:
        if one.role == "prefill" or one.separate or one.chunks is not None:
            yield f"`{one.name}` has no lowering for the features of `coreml_llm`", one.span
    if topology.taps:
        yield f"{_RUNTIME} takes no taps", None


def _chunks(topology: Topology) -> Iterator[Fault]:
    first, last = topology.chunks[0], topology.chunks[-1]
    if topology.layers.has_ple and not first.has("ple"):
        yield f"{_RUNTIME} leaves `ple` to the first chunk", first.span
    for chunk in topology.chunks:
        if not chunk.layers:
            yield f"{_RUNTIME} knows no chunk without layers, such as `{chunk.name}`", chunk.span
        elif chunk.has("norm") and chunk is not last:
            yield f"{_RUNTIME} reads the stream between chunks before the norm", chunk.span
        yield from _parts(chunk)


def _parts(chunk: Chunk) -> Iterator[Fault]:
    for part in chunk.parts:
        if part.kind == "embed":
            yield f"{_RUNTIME} looks tokens up itself", part.span
        elif part.head is not None and part.head.mode != "argmax":
            yield f"{_RUNTIME} reads tokens and no `{part.head.mode}`", part.span


def _tables(topology: Topology) -> Iterator[Fault]:
    """Per-layer rows there are, and tables are a byte a value."""
    if not topology.layers.has_ple:
        yield f"{_RUNTIME} feeds per-layer rows, and the model has none", None
    for recipe in topology.recipes:
        if recipe.role in {"embed", "ple_table"} and not topology.recipe(recipe.role):
            yield f"{_RUNTIME} reads `{recipe.role}` as `int8(per = row)` only", recipe.span


def _caches(topology: Topology) -> Iterator[Fault]:
    """One cache a kind, in tensors of the host, that the graph writes; one slot for all blends.

    There are two sets of them, of the first two chunks that own any.
    """
    owning = [
        chunk
        for chunk in topology.chunks
        if any(topology.blocks[index].kv.donor is None for index in chunk.layers)
    ]
    for chunk in owning[2:]:
        yield f"{_RUNTIME} keeps caches of two chunks, and `{chunk.name}` is a third", chunk.span
    for block in _owners(topology):
        if block.kv.store is Store.STATE:
            yield f"{_RUNTIME} keeps no KV in states", block.kv.at("store")
        elif block.kv.write is Write.APPEND:
            yield f"{_RUNTIME} appends no rows itself", block.kv.at("write")
    for kind in Kind:
        mine = [block.kv for block in _owners(topology) if _kind(topology, block) is kind]
        for kv in mine[1:]:
            if _stored(kv) != _stored(mine[0]):
                at = kv.at("write") or kv.at("slots") or kv.at("row")
                yield f"{_RUNTIME} has one cache for all {kind.value} layers of a chunk", at
    blends = [block.kv for block in _owners(topology) if block.kv.write is Write.BLEND]
    for kv in blends[1:]:
        if kv.slots != blends[0].slots:
            yield f"{_RUNTIME} feeds one write mask to all blends", kv.at("write")


def _stored(kv: Kv) -> tuple[Write, int, int | None]:
    return kv.write, kv.slots, kv.padded_heads


def _masks(topology: Topology) -> Iterator[Fault]:
    """Sliding layers see a window, and what full ones see is told apart from it."""
    windows = {_kind(topology, block): block.attention for block in topology.blocks}
    sliding, full = windows.get(Kind.SLIDING), windows.get(Kind.FULL)
    if sliding is not None and full is not None and sliding.window == full.window:
        yield f"{_RUNTIME} has a mask for each kind of layer, and here they are one", full.span


def _donors(topology: Topology) -> Iterator[Fault]:
    """One layer of each kind hands its KV to other chunks."""
    exported: dict[Kind, int] = {}
    for chunk in topology.chunks:
        for index in chunk.layers:
            block = topology.blocks[index]
            donor = block.kv.donor
            if donor is None or donor in chunk.layers:
                continue
            first = exported.setdefault(_kind(topology, block), donor)
            if donor != first:
                words = f"{_RUNTIME} carries the KV of one {_kind(topology, block).value} layer"
                yield f"{words} between chunks, not of L{first} and L{donor}", block.kv.at("source")


def _sharing(topology: Topology) -> Iterator[Fault]:
    """The layers that share are told by their number: they are the last ones."""
    readers = [block for block in topology.blocks if block.kv.donor is not None]
    first = len(topology.blocks) - len(readers)
    for block in readers[:1]:
        if block.index < first:
            words = f"{_RUNTIME} takes the last {len(readers)} layers for those that share"
            yield f"{words}, and L{block.index} shares too", block.kv.at("source")


def _owners(topology: Topology) -> Iterator[Block]:
    return (block for block in topology.blocks if block.kv.donor is None)


def _kind(topology: Topology, block: Block) -> Kind:
    return topology.layers.layers[block.index].kind
