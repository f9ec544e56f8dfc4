"""Twins at four bits a weight: bit by bit what their dequantised weights compute, within the gates.

The other side knows nothing of recipes in packages: it is the bundle of a checkpoint whose
matrices are the numbers that a table and indices mean, read here by hand.
"""

import json
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch
from attrs import evolve, frozen
from safetensors.torch import load_file, save_file
from twins import (
    SAME_ARITHMETIC,
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
from topoc.lowering.compress.compress import compress
from topoc.lowering.compress.recipe import Palettize
from topoc.lowering.compress.source import Held
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
GROUP = 32
OTHER_EDGES = (
    "threeway_prefill4 prefill4 verify4 padded32 swa4_8k wfa stateful1 stateful3 stateful4"
)
BASE = dict.fromkeys((*SAME_ARITHMETIC, *OTHER_EDGES.split()), "swa4")
BASE["e4b_threeway"] = "e4b_swa4"
"""Twins whose decode steps run the ops of another, rounded alike, while the context is short."""
SLICES = {"head_split16": 16}
"""Runs of rows that the head is cut into, each of which is compressed by itself."""
ON_THE_HOST = frozenset({"stateless4", "lite2"})
"""Those whose host makes per-layer vectors, of a projection that stays whole."""
PROJECTION, HEAD, TABLE = (
    "model.per_layer_model_projection.weight",
    "lm_head.weight",
    "model.embed_tokens.weight",
)
TOLD = {"palettize(bits = 4, group = 32)"}
DECODED = W + 4
JUDGED = (0, 1, W - 1, W, W + 2)


def by_hand(values, runs=1, *, pad_groups=False):
    """A matrix at four bits: each group of outputs by its own table, the low nibble first."""
    parts = []
    for run in values.chunk(runs):
        made = compress(Held("w", run), Palettize(4, GROUP), pad_groups=pad_groups)
        packed = np.frombuffer(made.parts["indices"].data.tobytes(), np.uint8)
        indices = np.stack([packed & 15, packed >> 4], 1).reshape(-1, run.shape[1])
        tables = np.frombuffer(made.parts["lut"].data.tobytes(), np.float16).reshape(-1, 16)
        rows = [tables[row // GROUP][one] for row, one in enumerate(indices[: len(run)])]
        parts.append(np.stack(rows))
        assert nearest(run.half().numpy(), parts[-1], tables)
    return torch.from_numpy(np.concatenate(parts)).float()


def nearest(values, found, tables):
    """Whether each number has become the nearest entry of its group's table."""
    entries = np.repeat(tables, GROUP, 0)[: len(values), None].astype(np.float32)
    least = np.abs(values[:, :, None] - entries).min(2)
    return np.array_equal(np.abs(values.astype(np.float32) - found), least)


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
        tensors[HEAD] = tensors[TABLE].clone()
        for name, one in tensors.items():
            if one.ndim == 2 and "embed_tokens" not in name:
                tensors[name] = by_hand(one, **options)
        return cls(config | {"tie_word_embeddings": False}, tensors)

    def save(self, folder, **others):
        folder.mkdir()
        save_file(self.tensors | others, folder / "model.safetensors", metadata={"format": "pt"})
        (folder / "config.json").write_text(json.dumps(self.config), "utf-8")
        return folder


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


def rows(bundle, *, rounding=False):
    """The logits after each token."""
    engine = session(bundle, rounding=rounding)
    return np.stack([engine.feed([one], only="decode").logits for one in TOKENS[:DECODED]])


def keeps_gates(bundle, reference):
    verdicts = list(prove(bundle, reference, JUDGED))
    assert [one.gate for one in verdicts] == ["ii", "ii-unrounded", "iii", "iv"]
    return all(one.kept for one in verdicts)


@pytest.mark.parametrize("name", sorted(set(TWINS) - set(BASE)))
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


@pytest.fixture(scope="module")
def base_rows(shelf, checkpoint_of):
    """Those of a layout whose ops others run in chunks of another cut, or with other caches."""

    @cache
    def found(name):
        twin = TWINS[name]
        bundle = shelf.bundle(twin, checkpoint_of(twin).folder, f"{name} as base", int4())
        return rows(bundle, rounding=True)

    return found


@pytest.mark.parametrize("name", sorted(BASE))
def test_the_same_ops_elsewhere_give_the_same_bits(name, shelf, checkpoint_of, base_rows):
    """Where every op rounds to fp16: so its gates are those of the base."""
    twin = TWINS[name]
    bundle = shelf.bundle(twin, checkpoint_of(twin).folder, name, int4())

    assert {one.scheme for one in bundle.manifest.quantization.tensors} == TOLD
    assert np.array_equal(rows(bundle, rounding=True), base_rows(BASE[name]))


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
