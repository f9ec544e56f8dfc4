"""Bundles for the device runtime of CoreML-LLM: what they compute, and that it would load them."""

import json

import coreml_llm_reader as runtime
import numpy as np
import pytest
from coreml_llm_bundles import CONTEXT, ROTARY, K, Made
from twins import TOKENS, W, session

from topoc.dsl.diagnostic import TopocError
from topoc.lowering.compiler import compile_bundle
from topoc.lowering.engine.predict import InterpreterPredictor
from topoc.lowering.engine.sampling import sampler
from topoc.lowering.engine.session import Prompt, tokenizer_of
from topoc.lowering.engine.speculation import Speculation
from topoc.lowering.parity.gates import LIMITS, difference, telling_positions
from topoc.lowering.parity.proof import prove

EVERYWHERE = tuple(range(len(TOKENS)))
TELLING = telling_positions([W], len(TOKENS) - 1)
FILES = {
    "config.json",
    "cos_full.npy",
    "cos_sliding.npy",
    "embed_tokens_per_layer_q8.bin",
    "embed_tokens_per_layer_scales.bin",
    "embed_tokens_q8.bin",
    "embed_tokens_scales.bin",
    "hf_model",
    "manifest.json",
    "model_config.json",
    "sin_full.npy",
    "sin_sliding.npy",
    "topology.topo",
}
HF_FILES = {
    "chat_template.jinja",
    "config.json",
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
}


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    return Made(tmp_path_factory.mktemp("coreml_llm"))


@pytest.fixture(scope="module")
def reference(made):
    return made.checkpoint().oracle.logits(TOKENS)


# --- what they compute ----------------------------------------------------------------------


@pytest.mark.parametrize("layout", ["A", "C"])
def test_decode_of_the_fp32_build_equals_the_reference(made, reference, layout):
    engine = session(made.bundle(layout, "fp32"))
    found = np.stack([engine.feed([token]).logits for token in TOKENS])
    assert difference(found, reference, EVERYWHERE).keeps("i")


@pytest.mark.parametrize("layout", ["A", "C"])
def test_the_fp16_package_keeps_every_gate_with_its_tables_as_shipped(made, layout):
    verdicts = list(prove(made.bundle(layout), made.checkpoint().oracle, TELLING))
    assert {one.gate for one in verdicts} == {"ii", "ii-unrounded", "iii"}
    assert [one for one in verdicts if not one.kept] == []


@pytest.mark.parametrize("start", [0, 1, W - K - 1, W - K])
def test_verify_rows_equal_decode_while_the_window_holds_them(made, reference, start):
    limit = LIMITS["i"] * reference.std()
    engine = session(made.bundle("A", "fp32"))
    for token in TOKENS[:start]:
        engine.feed([token])
    call = engine.verify(TOKENS[start : start + K])
    rows = np.stack([call.result(row).logits for row in range(K)])
    assert np.abs(rows - reference[start:][:K]).max() <= limit
    engine.accept(call, K - 1)
    for at in range(start + K - 1, start + K - 1 + 2 * W):
        logits = engine.feed([TOKENS[at]]).logits
        assert np.abs(logits - reference[at]).max() <= limit


@pytest.mark.parametrize("start", [W - K + 1, W, 2 * W + 1])
def test_a_verify_that_would_push_rows_out_is_refused_by_name(made, reference, start):
    engine = session(made.bundle("A", "fp32"))
    for token in TOKENS[:start]:
        engine.feed([token])
    with pytest.raises(TopocError, match=r"run\.window-lost"):
        engine.verify(TOKENS[start : start + K])
    logits = engine.feed([TOKENS[start]]).logits
    assert np.abs(logits - reference[start]).max() <= LIMITS["i"] * reference.std()


def test_a_verify_takes_full_calls_only(made):
    """Padding would be shifted into the caches that its first rows see."""
    engine = session(made.bundle("A", "fp32"))
    with pytest.raises(TopocError, match=r"run\.no-such-function"):
        engine.verify(TOKENS[: K - 1])


def test_speculation_gives_the_plain_text_and_ends_where_the_window_does(made):
    bundle = made.bundle("A", "fp32")
    greedy = sampler(bundle.manifest, temperature=0.0, top_k=None, seed=0)
    plain = list(session(bundle).generate([5, 7, 5], 24, greedy, set()))
    drafting = Speculation(session(bundle))
    assert list(drafting.generate([5, 7, 5], 24, greedy, set())) == plain
    assert 0 < drafting.drafted < 24


# --- that it would load them ----------------------------------------------------------------


@pytest.mark.parametrize(
    ("layout", "chunks", "verify"),
    [
        ("A", ["chunk1", "chunk2", "chunk3", "chunk4"], K),
        ("C", ["chunk1", "chunk2_3way", "chunk3_3way"], None),
        ("E4B", ["chunk1", "chunk2", "chunk3", "chunk4"], K),
    ],
)
def test_the_runtime_would_load_the_folder(made, layout, chunks, verify):
    loaded = runtime.load(made.bundle(layout).path, rotary=ROTARY)
    assert [*loaded.chunks] == chunks
    assert loaded.verify == verify
    assert loaded.stops == {1, 106, 151_645}


@pytest.mark.parametrize("layout", ["A", "C", "E4B"])
def test_its_own_loop_gives_what_our_engine_gives(made, layout):
    """Its masks are filled with infinity, and its tables are read by its own rules."""
    bundle = made.bundle(layout)
    steps = {one.package: one for one in bundle.manifest.functions[0].steps}
    instance = InterpreterPredictor(bundle).begin()

    def predict(name, inputs):
        return instance.predict(steps[f"{name}.mlpackage"], inputs, ())

    theirs = runtime.Session(runtime.load(bundle.path, rotary=ROTARY), predict)
    ours = session(bundle)
    for token in TOKENS[: 2 * W + 2]:
        outputs, result = theirs.step(token), ours.feed([token])
        assert outputs["token_id"].tolist() == [result.token]
        assert outputs["token_logit"][0] == pytest.approx(result.token_logit, abs=1e-4)
        assert outputs["token_logit"][0] == pytest.approx(result.logits.max(), abs=1e-4)


@pytest.mark.parametrize("layout", ["A", "C"])
def test_the_folder_holds_the_runtimes_files_and_no_table_twice(made, layout):
    path = made.bundle(layout).path
    found = {one.name for one in path.iterdir() if one.suffix != ".mlpackage"}
    assert found == FILES
    assert {one.name for one in (path / "hf_model").iterdir()} == HF_FILES
    for name in HF_FILES:
        mine, theirs = path / "hf_model" / name, made.checkpoint().folder / name
        assert mine.read_bytes() == theirs.read_bytes()


def test_its_config_says_what_the_model_and_the_topology_are(made):
    found = json.loads((made.bundle("E4B").path / "model_config.json").read_text())
    kinds = ["sliding_attention"] * 5 + ["full_attention"]
    assert found == {
        "model_name": "e4b",
        "architecture": "gemma4",
        "hidden_size": 48,
        "num_layers": 42,
        "num_hidden_layers": 42,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "global_head_dim": 32,
        "rms_norm_eps": 1e-5,
        "final_logit_softcapping": 12.0,
        "vocab_size": 131,
        "context_length": CONTEXT,
        "sliding_window": W,
        "per_layer_dim": 8,
        "embed_scale": 48**0.5,
        "per_layer_embed_scale": 8**0.5,
        "per_layer_model_projection_scale": 48**-0.5,
        "per_layer_input_scale": 2**-0.5,
        "num_kv_shared_layers": 18,
        "layer_types": kinds * 7,
        "bos_token_id": 2,
        "eos_token_id": 1,
        "quantization": "fp16",
        "compute_units": "CPU_AND_NE",
        "tokenizer_repo": "hf_model",
    }


def test_the_engine_finds_the_tokenizer_where_the_runtime_does(made):
    bundle = made.bundle("A")
    tokenizer = tokenizer_of(bundle)
    assert Prompt(text="w5 w7").tokens(bundle, tokenizer) == [5, 7]
    assert Prompt(text="w5 w7", chat=True).tokens(bundle, tokenizer) == [2, 5, 7, 9]


def test_what_nobody_has_proved_is_told(made):
    told = made.bundle("A").manifest.unproven
    assert "runtime: no device has loaded this bundle with the runtime of CoreML-LLM" in told
    assert any(one.startswith("verify: exact only while P + K <= W") for one in told)
    assert any("these are of 16 and 32" in one for one in told)
    assert not any(one.startswith("verify:") for one in made.bundle("C").manifest.unproven)
    assert not any("it looks for no chunks" in one for one in told)


def test_chunks_that_the_runtime_does_not_look_for_are_told(made, tmp_path):
    text = "topology two extends merged2 {\n  features coreml_llm\n  functions decode\n}\n"
    checkpoint = made.checkpoint().folder
    bare = tmp_path / "bare"
    bare.mkdir()
    for name in ("config.json", "model.safetensors"):
        (bare / name).symlink_to(checkpoint / name)
    told = compile_bundle(made.request(text, bare), tmp_path / "two").unproven
    assert "runtime: it looks for no chunks chunk12, chunk34" in told
    assert any("none came with the weights" in one for one in told)


def test_a_build_in_fp32_keeps_its_tables_in_fp32(made):
    """It is there to be compared with, and the runtime reads fp16."""
    bundle = made.bundle("A", "fp32")
    found = {one.name for one in bundle.path.iterdir()}
    assert not found & {"model_config.json", "hf_model", "embed_tokens_q8.bin", "cos_full.npy"}
    assert {one.dtype for one in bundle.manifest.tables.values()} == {"fp32"}


def test_twins_cross_their_windows():
    assert 2 * W + 1 + K < len(TOKENS) < CONTEXT
