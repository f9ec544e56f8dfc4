"""Tiny random Gemma 3 checkpoints in which every feature of the family matters."""

import json
import os
from pathlib import Path

os.environ.setdefault("HF_HUB_OFFLINE", "1")

WINDOW = 8


def tiny_gemma3(directory: Path, *, kv_heads=1, seed=0, nested=False, spelling="4", **overrides):
    """Save a checkpoint in `directory` and return transformers' own model of it, in fp32.

    `spelling` is "5" for rope_parameters or "4" for rope_theta and rope_local_base_freq.
    """
    import torch
    from transformers import Gemma3ForCausalLM, Gemma3TextConfig

    torch.manual_seed(seed)
    config = Gemma3TextConfig(
        **{
            "vocab_size": 131,
            "hidden_size": 48,
            "intermediate_size": 72,
            "num_hidden_layers": 4,
            "num_attention_heads": 4,
            "num_key_value_heads": kv_heads,
            "head_dim": 16,
            "sliding_window": WINDOW,
            "layer_types": ["sliding_attention", "full_attention"] * 2,
            "query_pre_attn_scalar": 20,
            "max_position_embeddings": 256,
            "rope_parameters": {
                "sliding_attention": {"rope_type": "default", "rope_theta": 100.0},
                "full_attention": {"rope_type": "default", "rope_theta": 5000.0},
            },
            "bos_token_id": 2,
            "eos_token_id": 1,
            "pad_token_id": 0,
            "rms_norm_eps": 1e-5,
        }
        | overrides,
        attn_implementation="eager",
    )
    model = Gemma3ForCausalLM(config).eval().requires_grad_(False)
    for name, parameter in model.named_parameters():
        parameter.copy_(_drawn(name, parameter, kv_heads))
    ids = torch.arange(131)[None, :60]
    model.model.norm.weight.copy_((1 + model.model.norm.weight) * 3 / model(ids).logits.std() - 1)
    model.save_pretrained(directory)
    _spell(directory / "config.json", spelling, nested)
    return model


def _drawn(name, parameter, kv_heads):
    """Weights that make attention sharp, gains that are far from neutral, KV heads unlike."""
    import torch

    if parameter.ndim == 1:
        centre = 0.3 if "_norm" in name and "self_attn" in name else 0.0
        return centre + (torch.rand_like(parameter) - 0.5) * 0.5
    noise = torch.randn_like(parameter)
    if "embed_tokens" in name:
        return noise * 0.1
    scale = 1.4 if any(f"{one}_proj" in name for one in "qk") else 1.0
    noise *= scale / parameter.shape[1] ** 0.5
    if "v_proj" in name:
        noise *= torch.linspace(1, 3, kv_heads).repeat_interleave(parameter.shape[0] // kv_heads)[
            :, None
        ]
    return noise


def _spell(path, spelling, nested):
    """Rewrite a config as transformers 4 wrote it, or inside a text_config."""
    config = json.loads(path.read_text())
    if spelling == "4":
        ropes = config.pop("rope_parameters")
        config["rope_theta"] = ropes["full_attention"]["rope_theta"]
        config["rope_local_base_freq"] = ropes["sliding_attention"]["rope_theta"]
        config["rope_scaling"] = None
    if nested:
        outer = {"model_type": "gemma3", "architectures": ["Gemma3ForConditionalGeneration"]}
        for key in ("bos_token_id", "eos_token_id", "pad_token_id", "tie_word_embeddings"):
            outer[key] = config[key]
        config = {**outer, "text_config": config}
    path.write_text(json.dumps(config, indent=2))
