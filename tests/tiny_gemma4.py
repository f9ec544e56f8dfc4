"""Tiny random Gemma 4 checkpoints in which every feature of the family matters."""

import json
import os
from pathlib import Path

os.environ.setdefault("HF_HUB_OFFLINE", "1")

WINDOW = 8
PLE_WIDTH = 8
E2B = {"layers": 35, "period": 5, "shared": 20, "kv_heads": 1, "double": True}
E4B = {"layers": 42, "period": 6, "shared": 18, "kv_heads": 2, "double": False}
# The fields in which a config says the head widths, one way or the other.
BY_KIND = ("global_head_dim", "num_global_key_value_heads")
SHARED_PARTS = ("k_proj", "v_proj", "k_norm")
# What the outer object of a checkpoint that sees and hears holds beside its text model.
OUTER = {
    "model_type": "gemma4",
    "architectures": ["Gemma4ForConditionalGeneration"],
    "audio_config": None,
    "audio_token_id": 258881,
    "boa_token_id": 256000,
    "boi_token_id": 255999,
    "eoa_token_id": 258883,
    "eoa_token_index": 258883,
    "eoi_token_id": 258882,
    "image_token_id": 258880,
    "video_token_id": 258884,
    "vision_config": None,
    "vision_soft_tokens_per_image": 280,
}


def text_config(
    *, layers=35, period=5, shared=20, kv_heads=1, double=True, vocabulary=131, **overrides
):
    """The fields of a text model as published: by default the layers of E2B, and small."""
    kinds = [
        "full_attention" if (i + 1) % period == 0 else "sliding_attention" for i in range(layers)
    ]
    usual = {
        "model_type": "gemma4_text",
        "architectures": ["Gemma4ForCausalLM"],
        "attention_bias": False,
        "attention_k_eq_v": False,
        "bos_token_id": 2,
        "enable_moe_block": False,
        "eos_token_id": 1,
        "final_logit_softcapping": 12.0,
        "global_head_dim": 32,
        "head_dim": 16,
        "hidden_activation": "gelu_pytorch_tanh",
        "hidden_size": 48,
        "hidden_size_per_layer_input": PLE_WIDTH,
        "intermediate_size": 40,
        "layer_types": kinds,
        "max_position_embeddings": 256,
        "moe_intermediate_size": None,
        "num_attention_heads": 4,
        "num_experts": None,
        "num_global_key_value_heads": None,
        "num_hidden_layers": layers,
        "num_key_value_heads": kv_heads,
        "num_kv_shared_layers": shared,
        "pad_token_id": 0,
        "rms_norm_eps": 1e-5,
        "rope_parameters": {
            "full_attention": {
                "partial_rotary_factor": 0.25,
                "rope_theta": 5000.0,
                "rope_type": "proportional",
            },
            "sliding_attention": {"rope_theta": 100.0, "rope_type": "default"},
        },
        "sliding_window": WINDOW,
        "tie_word_embeddings": True,
        "top_k_experts": None,
        "use_bidirectional_attention": None,
        "use_double_wide_mlp": double,
        "vocab_size": vocabulary,
        "vocab_size_per_layer_input": vocabulary,
    }
    return usual | overrides


def spelled(config, spelling="published", *, nested=False):
    """A text model's config as it was published, or as transformers 5 writes it; maybe nested.

    `spelling` is "published" for one head width a kind, "5" for `per_layer_config`.
    """
    config = dict(config)
    if spelling == "5":
        wide = config["global_head_dim"]
        digits = len(str(config["num_hidden_layers"] - 1))
        config = {name: value for name, value in config.items() if name not in BY_KIND}
        config["per_layer_config"] = {
            f"{index:0{digits}}": {"head_dim": wide}
            for index, kind in enumerate(config["layer_types"])
            if kind == "full_attention"
        }
    if nested:
        ids = ("bos_token_id", "eos_token_id", "pad_token_id", "tie_word_embeddings")
        config = OUTER | {key: config[key] for key in ids} | {"text_config": config}
    return config


def tiny_gemma4(
    directory: Path,
    *,
    seed=0,
    spelling="published",
    nested=False,
    redundant=False,
    **dimensions,
):
    """Save a checkpoint in `directory` and return transformers' own model of it, in fp32.

    `redundant` keeps K and V tensors of the layers that share, as published checkpoints do.
    """
    import torch
    from safetensors.torch import save_file
    from transformers import Gemma4ForCausalLM, Gemma4TextConfig

    torch.manual_seed(seed)
    config = text_config(**dimensions)
    model = Gemma4ForCausalLM(Gemma4TextConfig(**config, attn_implementation="eager"))
    model = model.eval().requires_grad_(False)
    for name, tensor in model.state_dict().items():
        if name != "lm_head.weight" or not config["tie_word_embeddings"]:
            tensor.copy_(_drawn(name, tensor))
    _level(model, config["vocab_size"])
    directory.mkdir(parents=True, exist_ok=True)
    text = json.dumps(spelled(config, spelling, nested=nested), indent=2)
    (directory / "config.json").write_text(text)
    tensors = dict(model.state_dict())
    if config["tie_word_embeddings"]:
        del tensors["lm_head.weight"]
    if redundant:
        tensors |= _redundant(model.config, config)
    prefix = "model.language_model." if nested else "model."
    save_file(
        {
            name.replace("model.", prefix, 1): tensor.contiguous()
            for name, tensor in tensors.items()
        },
        directory / "model.safetensors",
        metadata={"format": "pt"},
    )
    return model


def _drawn(name, tensor):
    """Weights that make attention sharp, and gains and layer factors that are far from neutral.

    Branches are small beside the stream, or a step of fp16 would grow to another text over 35
    layers; the signs of the final gain keep a tied head from echoing the token.
    """
    import torch

    if name.endswith("layer_scalar"):
        return 0.8 + torch.rand_like(tensor) * 0.4
    if tensor.ndim == 1:
        centre = 0.7 if "self_attn" in name else 0.08 if "post_" in name else 1.0
        gain = centre * (1 + (torch.rand_like(tensor) - 0.5) * 0.5)
        return gain * (torch.randint_like(gain, 2) * 2 - 1) if name == "model.norm.weight" else gain
    noise = torch.randn_like(tensor)
    if "embed_tokens_per_layer" in name:
        return noise * PLE_WIDTH**-0.5
    if "embed_tokens" in name:
        return noise * 0.15
    return noise / tensor.shape[1] ** 0.5


def _level(model, vocabulary):
    """Scale the final norm until the logits, which a cap bends, deviate by about three."""
    import torch

    rows = torch.arange(60)
    ids = (rows * 37 % vocabulary)[None]
    for _ in range(3):  # rows by number, without which a model without per-layer inputs fails
        logits = model(ids, use_cache=False, logits_to_keep=rows).logits
        model.model.norm.weight.mul_(3 / logits.std())


def _redundant(theirs, config):
    """K and V tensors of layers that share, which nothing must read: they hold thousands."""
    import torch

    first = config["num_hidden_layers"] - config["num_kv_shared_layers"]
    found = {}
    for index in range(first, config["num_hidden_layers"]):
        head = theirs.per_layer_config[index].head_dim
        width = config["num_key_value_heads"] * head
        shapes = ((width, config["hidden_size"]), (width, config["hidden_size"]), (head,))
        for part, shape in zip(SHARED_PARTS, shapes, strict=True):
            name = f"model.layers.{index}.self_attn.{part}.weight"
            found[name] = torch.full(shape, 1000.0)
    return found
