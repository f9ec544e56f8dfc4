"""Palettes of the real Gemma 3 270M, against the best there are."""

import numpy as np
import optimal
import pytest

from topoc.lowering.checkpoint.open import open_checkpoint
from topoc.lowering.compress.compress import compress
from topoc.lowering.compress.dequantise import dense
from topoc.lowering.compress.recipe import Palettize
from topoc.lowering.compress.source import Held

pytest_plugins = ["real_model"]
pytestmark = [pytest.mark.real, pytest.mark.xdist_group("real")]
GROUP = 32


@pytest.mark.parametrize(
    ("name", "bits"),
    [  # whose clusters a coarser search does not find
        ("blk.9.attn_v.weight", 4),
        ("blk.2.ffn_up.weight", 4),
        ("blk.16.ffn_gate.weight", 6),
    ],
)
def test_the_error_is_within_a_thousandth_of_the_least(real_gguf, name, bits):
    reader = open_checkpoint(real_gguf)
    weight = reader.rows(name, 0, reader.entries[name].shape[0]).half()
    true = weight.numpy()
    found = dense(compress(Held(name, weight), Palettize(bits, GROUP)))
    lost = (true.astype(np.float64) - found.astype(np.float64)) ** 2
    lost = lost.reshape(len(true) // GROUP, -1).sum(1)
    groups = true.reshape(len(lost), -1)
    least = np.array([optimal.least(one, 1 << bits) for one in groups])
    assert lost.sum() <= 1.001 * least.sum()
    assert (lost <= 1.005 * least).all()
