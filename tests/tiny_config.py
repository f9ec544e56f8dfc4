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


def ninety_six(folder):
    """A topology of 96 layers like those of Gemma 4 E2B, 64 of which read KV; 36 programs."""
    config = json.loads((SHIPPED.parent / "gemma4-e2b.json").read_text("utf-8"))
    config |= {"num_hidden_layers": 96, "num_kv_shared_layers": 64}
    config["layer_types"] = [*kinds(95, period=5), "full_attention"]
    (folder / "config.json").write_text(json.dumps(config))
    chunks = [f"chunk chunk{at + 1} = L{8 * at}-{8 * at + 7}" for at in range(12)]
    chunks[0], chunks[-1] = "chunk chunk1 = ple + L0-7", f"{chunks[-1]} + norm + head(argmax)"
    path = folder / "deep.topo"
    path.write_text(
        'topology deep {\n  doc "Ninety-six layers."\n  model "config.json"\n'
        "  target ane ios18 a19\n  context 8192\n  kv {\n    sliding: write shift\n"
        "    full: write blend\n  }\n  " + "\n  ".join(chunks) + "\n"
        "  functions decode, verify(tokens = 3), prefill(tokens = 64)\n}\n"
    )
    return path
