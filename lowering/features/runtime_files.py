"""What the runtime of CoreML-LLM reads beside packages and tables: configs and a tokenizer.

Keys and files: conversion/build_gemma4_bundle.py, Sources/CoreMLLLM/ModelConfig.swift and
CoreMLLLM.swift of CoreML-LLM as of 2026-05-06 (72178c6).
"""

import json
import shutil
from collections.abc import Iterable, Iterator
from pathlib import Path

from topoc.dsl.model import Kind, Topology
from topoc.lowering.architecture import Architecture, LayerSpec, PerLayer
from topoc.lowering.features.storage import HF_MODEL
from topoc.lowering.ir import DType

MODEL_CONFIG = "model_config.json"
GENERATION_CONFIG = "generation_config.json"
UNITS = {"ane": "CPU_AND_NE", "gpu": "CPU_AND_GPU", "cpu": "CPU_ONLY", "all": "ALL"}
# The chunks that the runtime looks for, and the keyword by which people call them.
CHUNKS = (
    ("chunk1", "chunk2", "chunk3", "chunk4"),
    ("chunk1", "chunk2_3way", "chunk3_3way"),
    ("chunk1_topoI", "chunk2_topoI", "chunk3_topoI"),
)
WIDTHS = {Kind.SLIDING: 256, Kind.FULL: 512}  # of the rotary rows that it fills
STOPS = frozenset({1, 106, 151_645})  # the tokens at which it ends, beside the config's


def write_runtime_files(
    topology: Topology,
    architecture: Architecture,
    dtype: DType,
    beside: Iterable[Path],
    directory: Path,
) -> None:
    """The config of the runtime, and the folder from which it loads a tokenizer.

    `beside` names the checkpoint's files; what they stand beside of a generation config is copied.
    """
    config = json.dumps(model_config(topology, architecture, dtype), indent=1, allow_nan=False)
    (directory / MODEL_CONFIG).write_text(config + "\n", encoding="utf-8", newline="\n")
    home = directory / HF_MODEL
    home.mkdir(exist_ok=True)
    shutil.copyfile(architecture.config, home / "config.json")
    folders = [one.parent for one in (*list(beside)[:1], architecture.config)]
    found = (folder / GENERATION_CONFIG for folder in folders)
    for path in [one for one in found if one.is_file()][:1]:
        shutil.copyfile(path, home / GENERATION_CONFIG)


def model_config(
    topology: Topology, architecture: Architecture, dtype: DType
) -> dict[str, object]:  # JSON values
    """What `model_config.json` says, in the order in which the runtime's own builder says it."""
    first = {layer.kind: layer for layer in reversed(architecture.layers)}
    either = next(iter(first.values()))
    sliding, full = first.get(Kind.SLIDING, either), first.get(Kind.FULL, either)
    count = len(architecture.layers)
    return {
        "model_name": topology.name,
        "architecture": architecture.family,
        "hidden_size": architecture.hidden,
        "num_layers": count,
        "num_hidden_layers": count,
        **_heads(sliding, full),
        "rms_norm_eps": architecture.norms.eps,
        "final_logit_softcapping": architecture.final_softcap,
        "vocab_size": architecture.vocabulary,
        "context_length": topology.context,
        "sliding_window": _window(topology),
        **_per_layer(architecture, architecture.per_layer),
        "num_kv_shared_layers": sum(one.kv.donor is not None for one in topology.blocks),
        "layer_types": [f"{layer.kind.value}_attention" for layer in architecture.layers],
        "bos_token_id": next(iter(architecture.bos), None),
        "eos_token_id": next(iter(architecture.eos), None),
        "quantization": _scheme(topology, dtype),
        "compute_units": UNITS[topology.target.unit],
        "tokenizer_repo": HF_MODEL,
    }


def _heads(sliding: LayerSpec, full: LayerSpec) -> dict[str, int]:
    return {
        "num_attention_heads": sliding.heads,
        "num_key_value_heads": sliding.kv_heads,
        "head_dim": sliding.head_dim,
        "global_head_dim": full.head_dim,
    }


def _per_layer(architecture: Architecture, made: PerLayer | None) -> dict[str, float]:
    """What tokens and their per-layer rows are multiplied by."""
    scales = {"embed_scale": architecture.embed_multiplier}
    if made is None:  # refused before anything is written
        return scales
    return (
        {"per_layer_dim": made.width}
        | scales
        | {
            "per_layer_embed_scale": made.row_multiplier,
            "per_layer_model_projection_scale": made.projection_factor,
            "per_layer_input_scale": made.combined_factor,
        }
    )


def _window(topology: Topology) -> int:
    """What sliding layers see; of a model without any, everything."""
    kinds = topology.layers.layers
    windows = (
        block.attention.window
        for block in topology.blocks
        if kinds[block.index].kind is Kind.SLIDING and block.attention.window is not None
    )
    return next(windows, topology.context)


def _scheme(topology: Topology, dtype: DType) -> str:
    """The schemes of the packages' weights, or how they are stored without one."""
    hosts = {"embed", "ple_table", "activations"}
    names = {
        scheme.name
        for recipe in topology.recipes
        if recipe.role not in hosts
        for scheme in recipe.schemes
        if scheme.name != "none"
    }
    return "+".join(sorted(names)) or dtype.float_name


def unproven(topology: Topology, architecture: Architecture, *, tokenizer: bool) -> Iterator[str]:
    """What stands between the bundle and the runtime, as far as reading its code tells."""
    yield "runtime: no device has loaded this bundle with the runtime of CoreML-LLM"
    names = tuple(chunk.name for chunk in topology.chunks)
    if names not in CHUNKS:
        yield f"runtime: it looks for no chunks {', '.join(names)}"
    widths = {layer.kind: layer.head_dim for layer in architecture.layers}
    odd = [width for kind, width in widths.items() if width != WIDTHS[kind]]
    if odd:
        found = " and ".join(map(str, sorted(widths.values())))
        yield f"runtime: it fills rotary rows of 256 and 512, and these are of {found}"
    if not tokenizer:
        yield f"runtime: it loads a tokenizer from `{HF_MODEL}`, and none came with the weights"
    others = sorted({*architecture.eos[1:]} - STOPS)
    if others:
        yield f"runtime: its config has one end token, and {', '.join(map(str, others))} end too"
    if any(one.role == "verify" for one in topology.functions):
        yield (
            "verify: exact only while P + K <= W, and under the manifest's masks; the runtime's own"
            " sliding mask lets the first candidates see the later ones"
        )
