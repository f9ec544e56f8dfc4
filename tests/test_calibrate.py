"""What projections read, held against hooks on transformers' own modules."""

import numpy as np
import pytest
import torch
from tiny_gemma import tiny_gemma3
from tiny_gemma4 import tiny_gemma4
from tiny_tokenizer import with_tokenizer

from topoc.dsl.diagnostic import TopocError
from topoc.lowering.architecture import read
from topoc.lowering.calibration import (
    LEAST,
    Text,
    calibration_text,
    encoded,
    read_text,
    windows,
)
from topoc.lowering.checkpoint.bind import bind
from topoc.lowering.checkpoint.open import open_checkpoint
from topoc.lowering.interpret import calibrate as module
from topoc.lowering.interpret.calibrate import calibrate, powers
from topoc.lowering.interpret.walk import Walk

torch.set_num_threads(1)

SEEN = tuple((2, *((37 * at + 11 * nth) % 131 for at in range(23 - nth))) for nth in range(3))
HELD_OUT = ((2, *((53 * at + 5) % 131 for at in range(20))),)
TEXT = Text(SEEN, HELD_OUT)
MODELS = {
    "gemma3": lambda folder: tiny_gemma3(folder, kv_heads=2),
    "gemma4": lambda folder: tiny_gemma4(folder, layers=10, period=5, shared=5, kv_heads=2),
    "untied": lambda folder: tiny_gemma3(folder, tie_word_embeddings=False),
}
PARTS = {
    "self_attn.q_proj": "q",
    "self_attn.k_proj": "k",
    "self_attn.v_proj": "v",
    "self_attn.o_proj": "o",
    "mlp.gate_proj": "gate",
    "mlp.up_proj": "up",
    "mlp.down_proj": "down",
    "per_layer_input_gate": "ple_gate",
    "per_layer_projection": "ple_projection",
}


class Case:
    def __init__(self, name, folder):
        self.model = MODELS[name](folder)
        self.folder = folder
        self.weights = bind(open_checkpoint(folder), read(folder))
        self.architecture = self.weights.architecture

    def calibrate(self, folder=None, text=TEXT):
        return calibrate(self.architecture, self.weights, text, folder)


@pytest.fixture(scope="module", params=MODELS)
def case(request, tmp_path_factory):
    return Case(request.param, tmp_path_factory.mktemp(request.param))


@pytest.fixture(scope="module")
def gemma3(tmp_path_factory):
    return Case("gemma3", tmp_path_factory.mktemp("alone"))


def role_of(name, *, tied):
    """What programs call a module's weight; None for modules that the model never runs."""
    if name == "lm_head":
        return "embed" if tied else "head"
    if name.endswith("per_layer_model_projection"):
        return "ple.projection"
    index, _, part = name.partition("layers.")[2].partition(".")
    return f"layers.{index}.{PARTS[part]}"


def products_of(model, runs, *, tied):
    """E[x xᵀ] of every linear module's input, in float64, by hooks."""
    found, hooks = {}, []

    def watch(role):
        def hook(_, inputs):
            x = inputs[0].reshape(-1, inputs[0].shape[-1]).double()
            found[role] = found.get(role, 0.0) + x.T @ x

        return hook

    for name, one in model.named_modules():
        if isinstance(one, torch.nn.Linear):
            hooks.append(one.register_forward_pre_hook(watch(role_of(name, tied=tied))))
    for run in runs:
        rows = torch.arange(len(run))
        model(torch.tensor([run]), use_cache=False, logits_to_keep=rows)
    for hook in hooks:
        hook.remove()
    tokens = sum(map(len, runs))
    return {role: (one / tokens).numpy() for role, one in found.items()}


def test_powers_equal_what_hooks_see(case):
    wanted = products_of(case.model, SEEN, tied=case.architecture.tied)
    found = case.calibrate().power

    assert found.keys() == wanted.keys()
    for role, product in wanted.items():
        assert np.allclose(found[role], np.diag(product), rtol=1e-4, atol=1e-9), role


def test_what_is_judged_by_is_of_the_text_kept_back(case):
    wanted = products_of(case.model, HELD_OUT, tied=case.architecture.tied)
    inputs = case.calibrate()

    for role, product in wanted.items():
        assert np.allclose(inputs.judged(role), np.diag(product), rtol=1e-4, atol=1e-9), role
    assert not np.allclose(inputs.judged("layers.1.down"), inputs.power["layers.1.down"], rtol=0.01)


def test_products_equal_what_hooks_see_in_runs_along_the_diagonal(case, tmp_path, monkeypatch):
    monkeypatch.setattr(module, "RUN", 20)
    wanted = products_of(case.model, SEEN, tied=case.architecture.tied)
    inputs = case.calibrate(tmp_path)

    kept = products_of(case.model, HELD_OUT, tied=case.architecture.tied)

    assert inputs.files.keys() == wanted.keys()
    for role, product in wanted.items():
        found = inputs.products(role)
        (first, *_) = inputs.judging_products(role)
        limit = 1e-4 * np.diag(kept[role]).max()
        assert np.allclose(first, kept[role][:20, :20], rtol=1e-4, atol=limit), role
        assert [len(one) for one in found[:-1]] == [20] * (len(found) - 1)
        for at, run in enumerate(found):
            part = slice(20 * at, 20 * at + len(run))
            limit = 1e-4 * np.diag(product).max()
            assert np.allclose(run, product[part, part], rtol=1e-4, atol=limit), role
        assert sum(map(len, found)) == len(product)


def test_every_matrix_that_a_program_multiplies_by_is_watched(case):
    matrices = {
        one.role
        for one in case.architecture.tensors
        if len(one.shape) == 2 and one.role not in {"embed", "ple_table"}
    }
    head = "embed" if case.architecture.tied else "head"

    assert case.calibrate().power.keys() == matrices | {head}


def test_projections_that_read_one_value_share_their_figures(gemma3, tmp_path):
    inputs = gemma3.calibrate(tmp_path)

    assert inputs.power["layers.1.q"] is inputs.power["layers.1.v"]
    assert inputs.files["layers.1.gate"] == inputs.files["layers.1.up"]
    assert inputs.power["layers.1.q"] is not inputs.power["layers.0.q"]
    assert inputs.key("layers.1.k") != inputs.key("layers.1.gate")


def test_without_a_folder_there_are_no_products(gemma3):
    inputs = gemma3.calibrate()

    assert inputs.products("layers.0.q") is None
    assert inputs.key("layers.0.q") == ""
    assert inputs.importance("layers.0.q").columns is inputs.power["layers.0.q"]
    assert inputs.importance("norm") is None


def test_figures_are_the_same_bits_for_any_number_of_threads(gemma3, tmp_path):
    made = []
    for threads in (1, 2):
        folder = tmp_path / str(threads)
        folder.mkdir()
        torch.set_num_threads(threads)
        try:
            made.append(gemma3.calibrate(folder))
            assert torch.get_num_threads() == threads
        finally:
            torch.set_num_threads(1)
    one, other = made

    assert one.hashes == other.hashes
    assert one.digest == other.digest
    assert all(np.array_equal(one.power[role], other.power[role]) for role in one.power)


def test_the_digest_tells_texts_apart(gemma3):
    digests = {
        gemma3.calibrate(text=text).digest
        for text in (TEXT, Text(SEEN[:2], HELD_OUT), Text(SEEN, SEEN[:1]))
    }

    assert len(digests) == 3


def test_each_weight_is_read_once_however_many_windows(gemma3):
    class Counting:
        read: list = []  # noqa: RUF012 - one test

        def rows(self, role, start, stop):
            if role != "embed":
                self.read.append(role)
            return gemma3.weights.rows(role, start, stop)

    powers(gemma3.architecture, Counting(), SEEN)

    assert len(Counting.read) == len(set(Counting.read)) > 40


def test_the_weights_of_one_layer_are_held_at_a_time(case):
    walk = Walk(case.architecture, case.weights, SEEN)
    for visit in walk.visits():
        layers = {one.role.split(".")[1] for one in walk._held if one.role.startswith("layers.")}
        assert layers == ({str(visit.layer)} if visit.layer is not None else set())


# --- the text -------------------------------------------------------------------------------


def test_a_text_is_cut_into_windows_behind_bos(gemma3, tmp_path):
    text = calibration_text(gemma3.architecture, with_tokenizer(tmp_path / "t"), "abc" * 2000)
    runs = [*text.seen, *text.held_out]

    assert all(run[0] == 2 and len(run) <= 512 for run in runs)
    assert sum(len(run) - 1 for run in text.seen) == 4096
    assert sum(len(run) - 1 for run in text.held_out) == 1024
    ids = [token for run in runs for token in run[1:]]
    assert ids == ([3, 4, 5] * 2000)[: len(ids)]


def test_a_short_text_keeps_a_quarter_back(gemma3, tmp_path):
    text = calibration_text(gemma3.architecture, with_tokenizer(tmp_path / "t"), "ab" * 200)

    assert [len(run) for run in text.seen] == [301]
    assert [len(run) for run in text.held_out] == [101]


def test_tokens_without_a_row_in_every_table_are_passed_over(gemma3, tmp_path):
    assert encoded(gemma3.architecture, with_tokenizer(tmp_path / "t"), "a~b", "") == [3, 4]


@pytest.mark.parametrize("letters", [0, 10, LEAST - 1])
def test_a_text_that_tells_too_little_is_refused(gemma3, tmp_path, letters):
    with pytest.raises(TopocError, match=f"has {letters} tokens"):
        calibration_text(gemma3.architecture, with_tokenizer(tmp_path / "t"), "a" * letters)


def test_a_text_needs_a_tokenizer(gemma3):
    with pytest.raises(TopocError, match="came without a tokenizer") as caught:
        calibration_text(gemma3.architecture, None, "a" * 1000)
    assert caught.value.findings[0].code == "tokenizer.missing"


def test_a_model_without_bos_begins_with_the_text(gemma3):
    from attrs import evolve

    assert windows(evolve(gemma3.architecture, bos=()), list(range(5)), 3) == ((0, 1, 2), (3, 4))


def test_a_file_that_is_no_text_is_refused(tmp_path):
    (tmp_path / "a.bin").write_bytes(b"abc\xff")
    with pytest.raises(TopocError, match="byte 3 is 0xff"):
        read_text(tmp_path / "a.bin")
