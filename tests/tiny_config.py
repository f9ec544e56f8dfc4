"""Configs of small and of deep Gemma 3 models, made from the shipped one."""

import json
from pathlib import Path

SHIPPED = Path(__file__).parents[1] / "topologies" / "models" / "gemma3-270m.json"


def write(folder, **changes):
    """Write a config.json that differs from the 270M's in these fields; gives its path."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(SHIPPED.read_text("utf-8")) | changes))
    return path


def kinds(layers, *, period):
    """Each `period`-th layer full, the others sliding."""
    return ["sliding_attention" if (at + 1) % period else "full_attention" for at in range(layers)]


def tiny(folder):
    """Four layers of width 48."""
    return write(
        folder,
        hidden_size=48,
        intermediate_size=72,
        head_dim=16,
        vocab_size=131,
        sliding_window=8,
        max_position_embeddings=256,
        num_hidden_layers=4,
        layer_types=kinds(4, period=2),
    )


def deep(folder, layers=35):
    """As the 270M, with more layers."""
    return write(folder, num_hidden_layers=layers, layer_types=kinds(layers, period=6))
