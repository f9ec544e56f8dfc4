"""Twins at four bits a weight: bit by bit what their dequantised weights compute, within the gates.

The other side knows nothing of recipes in packages: it is the bundle of a checkpoint whose
matrices are the numbers that a table and indices mean, read here by hand.
"""

from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch
from attrs import evolve, frozen
from by_hand import HEAD, TABLE, Left, by_hand
from safetensors.torch import load_file
from twins import (
    TOKENS,
    TWINS,
    WHOLE,
    Checkpoint,
    W,
    int4,
    requested,
    session,
)

from topoc.dsl.diagnostic import TopocError
from topoc.dsl.source import Span
from topoc.lowering.bundle.reader import open_bundle
from topoc.lowering.compiler import compile_bundle
from topoc.lowering.compress.cache import Cache
from topoc.lowering.manifest import Allowed, Lint
from topoc.lowering.parity.proof import named, prove
from topoc.lowering.parity.shipped import shipped

torch.set_num_threads(1)

EVEN = {
    "vocabulary": 512,
    "hidden_size": 64,
    "intermediate_size": 64,
    "head_dim": 32,
    "global_head_dim": 64,
    "hidden_size_per_layer_input": 32,
}
"""Every matrix divides by 32, whatever its axis, and so do sixteen slices of the head."""
SLICES = {"head_split16": 16}
"""Runs of rows that the head is cut into, each of which is compressed by itself."""
ON_THE_HOST = frozenset({"stateless4", "lite2"})
"""Those whose host makes per-layer vectors, of a projection that stays whole."""
PROJECTION = "model.per_layer_model_projection.weight"
TOLD = {"palettize(bits = 4, group = 32)"}
DECODED = W + 4
JUDGED = (0, 1, W - 1, W, W + 2)


@frozen
class Shelf:
    """Where tiny checkpoints are, their bundles, and the cache that all of them share."""

    folder: Path

    def bundle(self, twin, checkpoint, name, schemes, **options):
        """The decode function of a twin; others are of the same weights, stored once."""
        request = requested(twin, checkpoint, "fp16", functions={"decode"}, schemes=schemes)
        request = evolve(request, cache=Cache(self.folder / "cache"), **options)
        compile_bundle(request, self.folder / name)
        return open_bundle(self.folder / name)


@pytest.fixture(scope="module")
def shelf(tmp_path_factory):
    return Shelf(tmp_path_factory.mktemp("twins"))


@pytest.fixture(scope="module")
def checkpoint_of(shelf):
    @cache
    def make(dimensions):
        folder = shelf.folder / f"m{len(list(shelf.folder.glob('m?')))}"
        return Checkpoint.make(folder, **dict(dimensions))

    return lambda twin, changed=EVEN: make(tuple((dict(twin.dimensions) | changed).items()))


left_of = cache(Left.of)


def whole_of(name, checkpoint, folder):
    """The checkpoint whose uncompressed bundle must be the same as the twin's, bit by bit."""
    source = load_file(checkpoint / "model.safetensors")
    others = {PROJECTION: source[PROJECTION]} if name in ON_THE_HOST else {}
    if name in SLICES:
        others[HEAD] = by_hand(source[TABLE], SLICES[name])
    return left_of(checkpoint).save(folder, **others)


def rows(bundle):
    """The logits after each token."""
    engine = session(bundle, rounding=False)
    return np.stack([engine.feed([one], only="decode").logits for one in TOKENS[:DECODED]])


def keeps_gates(bundle, reference):
    verdicts = list(prove(bundle, reference, JUDGED))
    assert [one.gate for one in verdicts] == ["ii", "ii-unrounded", "iii", "iv"]
    return all(one.kept for one in verdicts)


@pytest.mark.parametrize("name", sorted(TWINS))
def test_a_bundle_is_its_dequantised_weights_and_keeps_the_gates(name, shelf, checkpoint_of):
    twin = TWINS[name]
    checkpoint = checkpoint_of(twin)
    bundle = shelf.bundle(twin, checkpoint.folder, name, int4())
    whole = whole_of(name, checkpoint.folder, shelf.folder / f"left of {name}")
    plain = shelf.bundle(twin, whole, f"{name} whole", WHOLE)

    assert plain.manifest.quantization is None
    assert {one.scheme for one in bundle.manifest.quantization.tensors} == TOLD
    assert np.array_equal(rows(bundle), rows(plain))
    assert keeps_gates(bundle, checkpoint.oracle)


def test_groups_that_do_not_divide_are_padded_when_asked(shelf, checkpoint_of):
    """Their convolutions have more rows, so that only the weights are the same to the bit."""
    twin = TWINS["merged2"]
    checkpoint = checkpoint_of(twin, {"vocabulary": 131})

    with pytest.raises(TopocError) as raised:
        shelf.bundle(twin, checkpoint.folder, "ragged", int4())
    found = raised.value.findings
    assert {one.code for one in found} == {"quant.indivisible-group"}
    assert any("k_proj" in one.message for one in found)
    assert all(isinstance(one.at.at, Span) for one in found)  # the text's, not the checkpoint's
    known = Lint(allowed=(Allowed(code="quant.indivisible-group", reason="tried"),))
    with pytest.raises(TopocError, match=r"quant\.ragged-group.*k_proj"):
        shelf.bundle(twin, checkpoint.folder, "ragged", int4(), lint=known)
    assert not (shelf.folder / "ragged").exists()
    bundle = shelf.bundle(twin, checkpoint.folder, "ragged", int4(), pad_groups=True)
    left = Left.of(checkpoint.folder, pad_groups=True)
    plain = shelf.bundle(twin, left.save(shelf.folder / "left of it"), "ragged whole", WHOLE)
    names = named(bundle.path / "config.json", shipped(bundle))

    assert len(names) == len([one for one in left.tensors.values() if one.ndim == 2]) - 2
    for name, one in names.items():
        assert torch.equal(one, left.tensors[HEAD if name == TABLE else name]), name
    assert np.abs(rows(bundle) - rows(plain)).max() <= 1e-5 * rows(plain).std()
    assert keeps_gates(bundle, checkpoint.oracle)
