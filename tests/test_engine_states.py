"""Sessions of the interpreter over compiled packages: states of their own, and host tables."""

import numpy as np
import pytest
from compiled import compile_text, engine_of, predictor_of, topology_text, with_manifest
from renaming import renamed_copy
from tiny_gemma import tiny_gemma3
from tiny_gemma4 import tiny_gemma4

from topoc.lowering.bundle.reader import open_bundle
from topoc.lowering.engine.driver import Engine
from topoc.lowering.engine.predict import InterpreterPredictor
from topoc.lowering.engine.sampling import greedy
from topoc.lowering.engine.speculation import Speculation

TOKENS = [2, 0, 130, 5, 7] + [(37 * i) % 131 for i in range(30)]
APART = "decode, prefill(tokens = 7, package = separate), verify(tokens = 3, package = separate)"


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    folder = tmp_path_factory.mktemp("states") / "checkpoint"
    tiny_gemma3(folder, kv_heads=2)
    return folder


@pytest.fixture(scope="module")
def bundle(checkpoint):
    """States in packages of each function's own, and a tap."""
    text = topology_text("kv { all: store state }\n  tap L1", functions=APART)
    return compile_text(text, checkpoint, checkpoint.parent / "apart", precision="fp32")


@pytest.fixture(scope="module")
def plain(checkpoint):
    """The same model with caches that the host keeps."""
    text = topology_text("kv { all: write append }\n  tap L1", functions=APART)
    return compile_text(text, checkpoint, checkpoint.parent / "plain", precision="fp32")


def answers(engine, tokens):
    """Logits and taps over a prefill, wraps, rejected drafts, a second turn and decode."""
    found = []
    for count in (5, 1, 12, 1, 1, 6):
        found.append(engine.feed(tokens[engine.position : engine.position + count]))
        call = engine.verify([tokens[engine.position], 1, 1])
        found += [call.result(row) for row in range(3)]
        engine.accept(call, 1)
    return np.concatenate([[*one.logits, *one.taps[1]] for one in found])


def test_states_give_what_buffers_give(bundle, plain):
    found, wanted = answers(engine_of(bundle), TOKENS), answers(engine_of(plain), TOKENS)
    assert np.abs(found - wanted).max() < 1e-5 * wanted.std()


def test_sessions_of_one_predictor_keep_states_of_their_own(bundle):
    texts = TOKENS, TOKENS[::-1]
    alone = [answers(engine_of(bundle), one) for one in texts]
    predictor = predictor_of(bundle)
    sessions = [Engine(bundle, predictor, want_logits=True) for _ in texts]
    for engine, one in zip(sessions, texts, strict=True):
        engine.feed(one[:9])
    for engine, one, wanted in zip(sessions, texts, alone, strict=True):
        engine.reset()
        assert np.array_equal(answers(engine, one), wanted)


def test_a_forgotten_copy_shows(bundle, plain):
    """Which is what the manifest tells of packages that share states."""
    functions = tuple(
        type(one)(**{n: getattr(one, n) for n in ("name", "role", "tokens", "steps")})
        for one in bundle.manifest.functions
    )
    forgetful = engine_of(with_manifest(bundle, functions=functions))
    wanted = answers(engine_of(plain), TOKENS)
    assert np.abs(answers(forgetful, TOKENS) - wanted).max() > wanted.std()


def test_names_mean_nothing_where_packages_keep_states(bundle, tmp_path):
    renamed = open_bundle(renamed_copy(bundle.path, tmp_path / "renamed", 3))
    text = (renamed.path / "manifest.json").read_text()
    assert not any(one in text for one in ("kv_sliding", "index_s", "mask_w8", ".mlpackage"))
    engine = Engine(renamed, InterpreterPredictor(renamed), want_logits=True)
    assert np.array_equal(answers(engine, TOKENS), answers(engine_of(bundle), TOKENS))


@pytest.mark.parametrize("rounding", [False, True])
def test_a_speculative_run_says_the_same(bundle, rounding):
    plain, drafted = (engine_of(bundle, rounding=rounding) for _ in "ab")
    speculation = Speculation(drafted)
    wanted = list(plain.generate(TOKENS[:9], 40, greedy, set()))
    assert list(speculation.generate(TOKENS[:9], 40, greedy, set())) == wanted
    assert 0 < speculation.accepted < speculation.drafted


def test_per_layer_vectors_are_those_of_transformers(tmp_path):
    """Where no package makes them, the host does, as the manifest's `per_layer` says."""
    import torch

    model = tiny_gemma4(tmp_path / "c", layers=6, period=3, shared=2).model
    ids = torch.tensor([TOKENS[:7]])
    with torch.no_grad():
        rows = model.get_per_layer_inputs(ids, None)
        wanted = model.project_per_layer_inputs(model.embed_tokens(ids), rows)
    text = topology_text(
        chunks="chunk one = L0-3\n  chunk two = L4-5 + norm + head(argmax)",
        functions="decode, prefill(tokens = 7)",
    ).replace("embed: none", "embed, ple_table: none")
    bundle = compile_text(text, tmp_path / "c", tmp_path / "b", precision="fp32")
    moments = []
    engine = engine_of(bundle)
    engine.watch = moments.append
    engine.feed(TOKENS[:7])
    fed = [
        moment.inputs[one.feature]
        for moment in moments
        for one in moment.step.inputs
        if one.source.kind == "per_layer"
    ]
    assert len(fed) == 2  # both chunks take them
    for one in fed:
        found = one[0, :, 0].T.reshape(wanted.shape[1:])
        assert np.abs(found - wanted[0].numpy()).max() < 1e-5 * wanted.std()
