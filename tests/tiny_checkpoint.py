"""A tiny Gemma 3 as a config and as tensors by role, and the files that hold it."""

import json
from pathlib import Path

import numpy as np
import torch

from topoc.lowering import architecture
from topoc.lowering.architecture import Architecture

CONFIG = {
    "model_type": "gemma3_text",
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "vocab_size": 97,
    "layer_types": ["sliding_attention", "full_attention"],
    "sliding_window": 8,
    "max_position_embeddings": 128,
    "query_pre_attn_scalar": 24,
    "rms_norm_eps": 1e-6,
    "rope_theta": 1e6,
    "rope_local_base_freq": 1e4,
    "hidden_activation": "gelu_pytorch_tanh",
    "tie_word_embeddings": True,
    "bos_token_id": 2,
    "eos_token_id": 1,
}


def tiny(folder: Path, **changes: object) -> Architecture:
    (folder / "config.json").write_text(json.dumps(CONFIG | changes))
    return architecture.read(folder)


def four_layers(folder: Path) -> Architecture:
    """A config of few and small matrices, of layers of both kinds in turn."""
    kinds = ["sliding_attention", "full_attention"] * 2
    return tiny(folder, vocab_size=160, num_hidden_layers=4, layer_types=kinds)


def by_role(found: Architecture) -> dict[str, torch.Tensor]:
    stream = torch.Generator().manual_seed(3)
    return {one.role: torch.randn(one.shape, generator=stream) for one in found.tensors}


def by_name(found: Architecture, prefix: str = "model.") -> dict[str, torch.Tensor]:
    """The tensors under their Hugging Face names."""
    values = by_role(found)
    return {
        one.name if one.role == "head" else prefix + one.name: values[one.role]
        for one in found.tensors
    }


def gguf_fields(found: Architecture) -> dict[str, int | float]:
    layer = found.layers[0]
    return {
        "block_count": len(found.layers),
        "embedding_length": found.hidden,
        "feed_forward_length": layer.mlp_width,
        "attention.head_count": layer.heads,
        "attention.head_count_kv": layer.kv_heads,
        "attention.key_length": layer.head_dim,
        "attention.sliding_window": 8,
        "attention.layer_norm_rms_epsilon": found.norms.eps,
        "rope.freq_base": 1e6,
    }


def write_gguf(file: Path, found: Architecture, kinds=None, fields=None, extra=()) -> Path:
    """The tiny model as GGUF; `kinds` maps roles' last words to quantisations."""
    import gguf

    writer = gguf.GGUFWriter(file, "gemma3")
    for key, value in (gguf_fields(found) | (fields or {})).items():
        add = writer.add_uint32 if isinstance(value, int) else writer.add_float32
        add(f"gemma3.{key}", value)
    values = by_role(found)
    for one in found.tensors:
        data = values[one.role].numpy()
        if data.ndim == 1:  # llama.cpp's converter stores Gemma's gains with the one added
            data = data + np.float32(1)
        name = (kinds or {}).get(one.role.rpartition(".")[2], "F32")
        kind = gguf.GGMLQuantizationType[name]
        stored = data if name == "F32" else gguf.quants.quantize(data, kind)
        writer.add_tensor(one.gguf, stored, raw_dtype=None if name == "F32" else kind)
    for name, data in extra:
        writer.add_tensor(name, data)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return file
