"""Parts of a topology in a few words, as differences and pages tell them."""

from topoc.dsl.model import Attention, Block, Chunk, Kv, Part, Store
from topoc.dsl.resolve.budgets import MEASURES
from topoc.dsl.resolve.selector import listed


def held(chunk: Chunk) -> str:
    """What a chunk holds, in short."""
    parts = [part_words(part) for part in chunk.parts if part.kind != "layers"]
    layers = [listed(chunk.layers)] if chunk.layers else []
    return " + ".join([*layers, *parts])


def part_words(part: Part) -> str:
    """A part that is no run of layers, with its arguments."""
    if part.head is None:
        return part.kind
    mode = f"topk = {part.head.k}" if part.head.mode == "topk" else part.head.mode
    split = f", split = {part.head.split}" if part.head.split > 1 else ""
    return f"head({mode}{split})"


def attention(one: Attention) -> str:
    """An attention's kind with its arguments."""
    given = (("window", one.window), ("tile", one.tile))
    inside = ", ".join(f"{name} = {value}" for name, value in given if value is not None)
    return f"{one.kind}({inside})" if inside else one.kind


def kept(block: Block) -> dict[str, str]:
    """How a layer's KV is kept; a reader keeps none."""
    kv = block.kv
    if kv.donor is not None:
        return {"source": f"share L{kv.donor}"}
    return {
        "source": "own",
        "write": kv.write.value,
        "slots": str(kv.slots),
        "store": f"state({kv.state})" if kv.store is Store.STATE else "io",
        "row": _row(kv),
    }


def _row(kv: Kv) -> str:
    if not kv.padded:
        return "tight"
    return f"padded(heads = {kv.padded_heads})" if kv.padded_heads else "padded"


def amount(measure: str, value: float) -> str:
    """What a measure comes to, in the unit that people write it in."""
    units = MEASURES[measure]
    if "ms" in units:
        return f"{value:g} ms"
    if "B" not in units:
        return f"{value:g}"
    scale, unit = next((s, u) for s, u in _SCALES if value >= s or s == 1)
    return f"{value / scale:g} {unit}"


_SCALES = ((1e9, "GB"), (1e6, "MB"), (1e3, "kB"), (1, "B"))
