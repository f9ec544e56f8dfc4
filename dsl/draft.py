"""A first topology for a checkpoint: an even split, and defaults for all the rest."""

import json
import re
from pathlib import Path

from topoc.dsl.layout import lay_out
from topoc.dsl.model import Layers
from topoc.dsl.source import Source
from topoc.dsl.tokens import RESERVED

LAYERS_PER_CHUNK = 8
_CONTEXT = 2048
_PREFILL = 64
_TARGET = "ane ios18 a17"
_SNAPSHOT = re.compile(r"[0-9a-f]{40}")  # a folder of the Hugging Face cache


def draft(layers: Layers, *, name: str, model: str, chunks: int | None = None) -> str:
    """The text in canonical layout; `model` is the path that it names."""
    sizes = split(len(layers.layers), chunks)
    context = min(layers.positions, max(_CONTEXT, *_windows(layers), 1))
    calls = ["decode"] + [f"prefill(tokens = {_PREFILL})"] * (context > _PREFILL)
    parts = f"{len(sizes)} chunk{'s' * (len(sizes) > 1)}"
    doc = f"{layers.family}: {len(layers.layers)} layers in {parts}, split evenly."
    lines = [
        f"doc {json.dumps(doc)}",
        f"model {json.dumps(model)}",
        f"target {_TARGET}",
        f"context {context}",
        *_chunks(sizes, "ple + " if layers.has_ple else ""),
        f"functions {', '.join(calls)}",
        f"expect {{ layers per chunk <= {sizes[0]} }}",
    ]
    text = "\n".join([f"topology {name} {{", *lines, "}"])
    return lay_out(Source(f"{name}.topo", text))


def split(layers: int, chunks: int | None = None) -> tuple[int, ...]:
    """The layers of each chunk, none with two more than another and the larger ones first."""
    count = -(-layers // LAYERS_PER_CHUNK) if chunks is None else chunks
    least, more = divmod(layers, count)
    return (least + 1,) * more + (least,) * (count - more)


def name_for(config: Path, family: str) -> str:
    """A name for a topology of this config: after the file, its folder, or the model's type."""
    folder = config.resolve().parent
    if _SNAPSHOT.fullmatch(folder.name):  # models--google--gemma-3-270m/snapshots/HASH
        folder = Path(folder.parents[1].name.rpartition("--")[2])
    stem = config.stem if config.stem != "config" else folder.name
    found = re.sub(r"[^a-z0-9]+", "_", stem.lower()).strip("_") or family
    usable = found[0].isalpha() and found not in RESERVED
    return found if usable else f"model_{found}"


def _windows(layers: Layers) -> list[int]:
    """The checkpoint's windows, which the context must hold."""
    return [layer.window for layer in layers.layers if layer.window is not None]


def _chunks(sizes: tuple[int, ...], first: str) -> list[str]:
    lines, start = [], 0
    for number, size in enumerate(sizes, 1):
        end = start + size - 1
        span = f"L{start}-{end}" if size > 1 else f"L{start}"
        before = first if number == 1 else ""
        after = " + norm + head(argmax)" if number == len(sizes) else ""
        lines.append(f"chunk chunk{number} = {before}{span}{after}")
        start = end + 1
    return lines
