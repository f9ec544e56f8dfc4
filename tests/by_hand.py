"""What four bits leave of a checkpoint, by code that knows nothing of recipes in packages."""

import json

import numpy as np
import torch
from attrs import frozen
from safetensors.torch import load_file, save_file

from topoc.lowering.compress.compress import compress
from topoc.lowering.compress.recipe import Palettize
from topoc.lowering.compress.source import Held

GROUP = 32
HEAD, TABLE = "lm_head.weight", "model.embed_tokens.weight"
LOOKED_AT = 4096  # rows of a matrix, one by one


def by_hand(values, runs=1, *, pad_groups=False):
    """A matrix at four bits: each group of outputs by its own table, the low nibble first."""
    parts = []
    for run in values.chunk(runs):
        made = compress(Held("w", run), Palettize(4, GROUP), pad_groups=pad_groups)
        packed = np.frombuffer(made.parts["indices"].data.tobytes(), np.uint8)
        indices = np.stack([packed & 15, packed >> 4], 1).reshape(-1, run.shape[1])
        tables = np.frombuffer(made.parts["lut"].data.tobytes(), np.float16).reshape(-1, 16)
        entries = np.repeat(tables, GROUP, 0)[: len(run)]
        parts.append(np.take_along_axis(entries, indices[: len(run)].astype(np.intp), 1))
        assert nearest(run.half().numpy(), parts[-1], entries)
    return torch.from_numpy(np.concatenate(parts)).float()


def nearest(values, found, entries):
    """Whether numbers have become the nearest entries of their group's table."""
    shown = slice(None, None, -(-len(values) // LOOKED_AT))
    values, found = values[shown].astype(np.float32), found[shown]
    least = np.abs(values[:, :, None] - entries[shown, None].astype(np.float32)).min(2)
    return np.array_equal(np.abs(values - found), least)


@frozen
class Left:
    """The tensors of a checkpoint with what four bits leave of its matrices.

    The head is apart from the table, which stays whole.
    """

    config: dict
    tensors: dict

    @classmethod
    def of(cls, checkpoint, **options):
        tensors = load_file(checkpoint / "model.safetensors")
        config = json.loads((checkpoint / "config.json").read_text("utf-8"))
        return cls.of_tensors(config, tensors, **options)

    @classmethod
    def of_tensors(cls, config, tensors, factors=(), **options):
        """`factors` are powers of two, by which a package holds some of the matrices."""
        tensors, factors = dict(tensors), dict(factors)
        tensors[HEAD] = tensors[TABLE].clone()
        for name, one in tensors.items():
            if one.ndim == 2 and "embed_tokens" not in name:
                factor = factors.get(name, 1.0)
                held = one if factor == 1.0 else (one + 0.0) * factor  # no zero is negative then
                tensors[name] = by_hand(held, **options) / factor
        return cls(config | {"tie_word_embeddings": False}, tensors)

    def save(self, folder, **others):
        folder.mkdir()
        save_file(self.tensors | others, folder / "model.safetensors", metadata={"format": "pt"})
        (folder / "config.json").write_text(json.dumps(self.config), "utf-8")
        return folder
