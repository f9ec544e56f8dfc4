"""What parses and has no lowering yet, refused by name at the line that asks for it."""

from collections.abc import Iterator

from topoc.dsl.diagnostic import Diagnostic, Place, error
from topoc.dsl.model import Block, Chunk, Function, Recipe, Store, Topology, Write
from topoc.dsl.source import Span

ATTENTION = frozenset({"sliding", "full"})
ROLES = frozenset({"decode", "prefill"})
PARTS = frozenset({"embed", "layers", "norm", "head"})
HOST_TABLE = (("int8", (("per", "row"),)),)


def refusals(topology: Topology) -> Iterator[Diagnostic]:
    """One error for each thing that can't be lowered, layers of one rule together."""
    yield from _once(topology, map(_attention, topology.blocks))
    yield from _once(topology, (_kv(topology, block) for block in topology.blocks))
    for function in topology.functions:
        yield from _function(topology, function)
    for chunk in topology.chunks:
        yield from _chunk(topology, chunk)
    yield from _once(topology, map(_scheme, topology.recipes))
    if topology.taps:
        yield _refusal(topology, "tap", "`tap` exports no hidden state yet", topology.span)
    if topology.features != "topoc":
        words = f"features profile `{topology.features}` is not emitted yet"
        yield _refusal(topology, "features", words, topology.span)


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
    if kv.donor is not None:
        return "kv", "`share` is not lowered yet", kv.span
    if kv.store is Store.STATE:
        return "kv", "`store state` is not lowered yet", kv.at("store")
    if kv.write is Write.SLICE:
        return "kv", "`write slice` is not lowered yet", kv.at("write")
    heads = topology.layers.layers[block.index].kv_heads
    if kv.padded_heads is not None and kv.padded_heads < heads:
        words = f"a padded row of {kv.padded_heads} KV heads can't hold a layer of {heads}"
        return "kv", words, kv.at("row")
    return None


def _function(topology: Topology, function: Function) -> Iterator[Diagnostic]:
    span = function.span
    if function.role not in ROLES:
        yield _refusal(topology, "function", f"`{function.role}` is not lowered yet", span)
    if function.write != "host" and function.tokens > 1:
        yield _refusal(topology, "function", "`write = graph` is not lowered yet", span)
    if function.separate:
        yield _refusal(topology, "function", "`package = separate` is not lowered yet", span)
    if function.chunks is not None:
        words = f"a chunk list for `{function.name}` alone is not lowered yet"
        yield _refusal(topology, "chunk", words, span)


def _chunk(topology: Topology, chunk: Chunk) -> Iterator[Diagnostic]:
    if all(part.head is not None and part.head.mode == "hidden" for part in chunk.parts):
        words = f"chunk `{chunk.name}` computes nothing, which is not lowered yet"
        yield _refusal(topology, "chunk", words, chunk.span)
    for part in chunk.parts:
        if part.kind not in PARTS:
            yield _refusal(topology, "part", f"part `{part.kind}` is not lowered yet", part.span)
        rows = topology.layers.vocabulary
        if part.head is not None and (part.head.k or 0) > rows:
            words = f"the best {part.head.k} of a vocabulary of {rows}"
            at = part.span or topology.span or Place(topology.name)
            yield error("value.range", words, at, help=f"ask for {rows} at most")
        if part.head is not None and part.head.split != 1:
            words = "a head in slices is not lowered yet"
            yield _refusal(topology, "part", words, part.span)


def _scheme(recipe: Recipe) -> Fault | None:
    schemes = tuple((one.name, one.arguments) for one in recipe.schemes if one.name != "none")
    if not schemes or (recipe.role == "embed" and schemes == HOST_TABLE):
        return None
    if recipe.role == "ple_table":
        return None  # the part `ple` is refused, and without it there is no such table
    return "scheme", f"scheme `{schemes[0][0]}` is not lowered yet", recipe.span


def _refusal(topology: Topology, family: str, words: str, span: Span | None) -> Diagnostic:
    at = span or topology.span or Place(topology.name)
    return error(f"{family}.not-lowered", words, at, help="leave it out, or wait for its lowering")
