"""What parses and has no lowering yet, refused by name at the line that asks for it."""

from collections.abc import Iterator

from topoc.dsl.diagnostic import Diagnostic, Place, error
from topoc.dsl.measure import all_chunks
from topoc.dsl.model import COREML_LLM, Block, Chunk, Function, Head, Recipe, Topology, Write
from topoc.dsl.source import Span
from topoc.lowering.features.limits import limits

ATTENTION = frozenset({"sliding", "full", "windowed_full", "flash_tiled"})
HOST_ROLES = frozenset({"embed", "ple_table"})
_PER_ROW, _PER_TENSOR = ((("int8", (("per", per),)),) for per in ("row", "tensor"))
LOWERED = {**dict.fromkeys(HOST_ROLES, _PER_ROW), "activations": _PER_TENSOR}
"""The one scheme of what is no matrix, by role."""


def refusals(topology: Topology) -> Iterator[Diagnostic]:
    """One error for each thing that can't be lowered, layers of one rule together."""
    yield from _once(topology, map(_attention, topology.blocks))
    yield from _once(topology, (_kv(topology, block) for block in topology.blocks))
    for function in topology.functions:
        yield from _function(topology, function)
    for chunk in all_chunks(topology):
        yield from _chunk(topology, chunk)
    yield from _once(topology, map(_scheme, topology.recipes))
    if topology.features == COREML_LLM:
        yield from limits(topology)


Fault = tuple[str, str, Span | None]


def _once(topology: Topology, faults: Iterator[Fault | None]) -> Iterator[Diagnostic]:
    """One finding a cause: layers that one rule set share its span."""
    for family, words, span in dict.fromkeys(fault for fault in faults if fault is not None):
        yield _refusal(topology, family, words, span)


def _attention(block: Block) -> Fault | None:
    kind = block.attention.kind
    if kind in ATTENTION:
        return None
    return "attention", f"attention `{kind}` is not lowered yet", block.attention.span


def _kv(topology: Topology, block: Block) -> Fault | None:
    kv = block.kv
    heads = topology.layers.layers[block.index].kv_heads
    if kv.padded_heads is not None and kv.padded_heads < heads:
        words = f"a padded row of {kv.padded_heads} KV heads can't hold a layer of {heads}"
        return "kv", words, kv.at("row")
    return None


def _function(topology: Topology, function: Function) -> Iterator[Diagnostic]:
    """A call that writes in the graph needs a place to write to."""
    if function.write != "graph" or function.tokens == 1:
        return
    mine = {layer for chunk in topology.chunks_of(function) for layer in chunk.layers}
    if any(
        block.kv.donor is None and block.kv.write is Write.APPEND and block.index in mine
        for block in topology.blocks
    ):
        words = f"`{function.name}` writes in the graph, and `write append` leaves that to the host"
        yield _refusal(topology, "function", words, function.span)


def _chunk(topology: Topology, chunk: Chunk) -> Iterator[Diagnostic]:
    if all(part.head is not None and part.head.mode == "hidden" for part in chunk.parts):
        words = f"chunk `{chunk.name}` computes nothing, which is not lowered yet"
        yield _refusal(topology, "chunk", words, chunk.span)
    for part in chunk.parts:
        if part.head is not None:
            at = part.span or topology.span or Place(topology.name)
            yield from _head(topology.layers.vocabulary, part.head, at)


def _head(rows: int, head: Head, at: Span | Place) -> Iterator[Diagnostic]:
    help_ = f"ask for {rows} at most"
    if (head.k or 0) > rows:
        yield error("value.range", f"the best {head.k} of a vocabulary of {rows}", at, help=help_)
    if head.split > rows:
        words = f"{head.split} slices of a vocabulary of {rows}"
        yield error("value.range", words, at, help=help_)


def _scheme(recipe: Recipe) -> Fault | None:
    """Matrices take every scheme; a host table int8 by row, and activations int8 by tensor."""
    schemes = tuple((one.name, one.arguments) for one in recipe.schemes if one.name != "none")
    if not schemes or schemes == LOWERED.get(recipe.role):
        return None
    name = " + ".join(name for name, _ in schemes)
    if recipe.role in HOST_ROLES:
        return "scheme", f"scheme `{name}` of a host table is not lowered yet", recipe.span
    if recipe.role == "activations":
        words = "a scale of activations that is not the whole tensor's is not lowered yet"
        return "scheme", words, recipe.span
    if schemes[0][0] == "prune" and len(schemes) > 1 and schemes[1][0] != "palettize":
        return "scheme", f"scheme `{name}` is not lowered yet", recipe.span
    return None


def _refusal(topology: Topology, family: str, words: str, span: Span | None) -> Diagnostic:
    at = span or topology.span or Place(topology.name)
    return error(f"{family}.not-lowered", words, at, help="leave it out, or wait for its lowering")
