"""What a picture says of its parts, as far as there is room, and whole to a screen reader."""

from collections.abc import Sequence

from topoc.lowering.cli.milliseconds import spelled
from topoc.lowering.cli.page import scene
from topoc.lowering.cli.size import size

LONGEST = 46  # characters of a line
_NAME = 26


def cut(words: str, most: int = LONGEST) -> str:
    """Words that have room; all of them are in the label and in the table."""
    return words if len(words) <= most else words[: most - 1] + "…"


def name_of(chunk: scene.Chunk) -> str:
    """A chunk's name, as far as there is room."""
    return cut(chunk.name, _NAME)


def bytes_of(chunk: scene.Chunk) -> str:
    """The weights and the KV traffic of a chunk's first function."""
    one = chunk.runs[0]
    kv = f"KV {size(one.kv_bytes_in)} in, {size(one.kv_bytes_out)} out"
    return cut(f"{size(chunk.stored_bytes)} stored · {kv}")


def chunk_label(chunk: scene.Chunk) -> str:
    """What a screen reader says of a chunk."""
    one = chunk.runs[0]
    weights = f"{size(chunk.stored_bytes)} stored, {size(chunk.loaded_bytes)} in fp16"
    kv = f"KV {size(one.kv_bytes_in)} in, {size(one.kv_bytes_out)} out"
    time = f"; {spelled(one.ms)}" if one.ms else ""
    return f"chunk {chunk.name}: {chunk.holds}; {weights}; {one.function}: {kv}{time}" + _found(
        chunk.findings
    )


def kv_of(layer: scene.Layer) -> str:
    """Whose KV a layer reads, or how its own is kept and how large it is."""
    if layer.donor is not None:
        return f"KV of L{layer.donor}"
    state = " in a state" if any(word.startswith("state") for word in layer.kept) else ""
    return f"{layer.kept[0]}{state} {size(layer.cache_bytes)}"


def layer_label(layer: scene.Layer) -> str:
    """What a screen reader says of a layer."""
    kept = ", ".join(layer.kept)
    kv = f"own KV, {kept}, {size(layer.cache_bytes)}" if layer.donor is None else f"KV {kept}"
    words = f"layer {layer.index}: {layer.detail}, sees {layer.seen} positions; {kv}"
    mark = "; changed" if layer.changed else ""
    return f"{words}; {size(layer.stored_bytes)} stored{mark}" + _found(layer.findings)


def arrow_label(arrow: scene.Arrow) -> str:
    """What a screen reader says of an arrow."""
    way = f"from {arrow.source} to {arrow.chunk}" if arrow.crosses else f"inside {arrow.chunk}"
    return f"KV of layer {arrow.donor} to layer {arrow.reader}, {way}, {size(arrow.bytes)}"


def _found(findings: Sequence[scene.Finding]) -> str:
    return "".join(
        f"; {one.diagnostic.severity.value} {one.number}: {one.diagnostic.message}"
        for one in findings
    )
