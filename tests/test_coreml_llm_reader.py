"""The reader of the runtime's folders fails on every one that is not as the runtime wants it."""

import json
import shutil

import coreml_llm_reader as runtime
import numpy as np
import pytest
from coreml_llm_bundles import CONTEXT, ROTARY, Made
from coreml_llm_reader import UnloadableError
from coremltools.proto import Model_pb2


@pytest.fixture(scope="module")
def sound(tmp_path_factory):
    """A folder that it loads, of four chunks and a verify."""
    return Made(tmp_path_factory.mktemp("reader")).bundle("A").path


def described(change):
    """A change of one chunk's description."""

    def mutate(folder, chunk):
        (file,) = (folder / f"{chunk}.mlpackage").rglob("model.mlmodel")
        model = Model_pb2.Model()
        model.ParseFromString(file.read_bytes())
        change({one.name: one for one in model.description.functions}, model.description)
        file.write_bytes(model.SerializeToString())

    return mutate


def feature(function, name):
    (found,) = [one for one in (*function.input, *function.output) if one.name == name]
    return found


def rename(functions, _):
    feature(functions["decode_q1"], "cos_s").name = "cos_sliding"


def widen(functions, _):
    shape = feature(functions["decode_q1"], "V_sliding_in").type.multiArrayType.shape
    shape[3] = 16


def drop(functions, _):
    inputs = functions["decode_q1"].input
    del inputs[[one.name for one in inputs].index("update_mask")]


def retype(functions, _):
    feature(functions["decode_q1"], "token_id").type.multiArrayType.dataType = runtime.FLOAT16


def flip(functions, _):
    shape = feature(functions["verify_q3"], "hidden_states").type.multiArrayType.shape
    shape[1], shape[2] = 48, 3


def other_first(_, description):
    description.defaultFunctionName = "verify_q3"


def without_verify(functions, description):
    description.functions.remove(functions["verify_q3"])


def settings(**changes):
    def mutate(folder):
        file = folder / "model_config.json"
        told = json.loads(file.read_text()) | changes
        kept = {key: value for key, value in told.items() if value is not None}
        file.write_text(json.dumps(kept))

    return mutate


def raw(name, dtype, change):
    def mutate(folder):
        change(np.fromfile(folder / name, dtype)).tofile(folder / name)

    return mutate


def angles(name, change):
    def mutate(folder):
        np.save(folder / name, change(np.load(folder / name)))

    return mutate


def all_pairs(table):
    """The full layers' table if every pair turned, as it was once built."""
    turned = 5000.0 ** -(np.arange(0, 32, 2) / 32)
    found = np.arange(len(table))[:, None] * np.concatenate([turned, turned])
    return np.cos(found).astype(np.float16)


def without(name):
    def mutate(folder):
        path = folder / name
        shutil.rmtree(path) if path.is_dir() else path.unlink()

    return mutate


def zeroed(codes):
    """Row 5 shrunk to half: another row than the scale is of."""
    codes.reshape(131, -1)[5] //= 2
    return codes


MUTANTS = {
    "a renamed feature": (("chunk2", rename), r"chunk2 takes \['cos_s', 'cos_sliding'\]"),
    "a tight cache": (("chunk1", widen), "V_sliding_in is"),
    "an input left out that no op reads": (("chunk3", drop), r"chunk3 takes \['update_mask'\]"),
    "a token that is no integer": (("chunk4", retype), "token_id has data type"),
    "channels before tokens": (("chunk3", flip), "hidden_states is"),
    "another default function": (("chunk1", other_first), "chunk1: causal_mask|chunk1 takes"),
    "a chunk without a verify": (("chunk2", without_verify), "chunk2 has no verify_q3"),
    "a missing chunk": (without("chunk3.mlpackage"), "chunk3 is missing"),
    "no first chunk": (without("chunk1.mlpackage"), "monolith"),
    "another context": (settings(context_length=CONTEXT // 2), "a mask of 64 for 32 positions"),
    "another window": (settings(sliding_window=16), "causal_mask_sliding is"),
    "another embedding scale": (settings(embed_scale=1.0), "embed_scale is 1.0"),
    "an unlike sharing": (settings(num_kv_shared_layers=10), "chunk1"),
    "a text for a number": (settings(vocab_size="131"), "vocab_size is '131'"),
    "a key left out": (settings(per_layer_dim=None), "has no per_layer_dim"),
    "a key too many": (settings(theta=1.0), "other keys"),
    "scales in fp32": (
        raw("embed_tokens_scales.bin", "<f2", lambda scales: scales.astype("<f4")),
        "embed_tokens_scales.bin has 524 bytes, not 262",
    ),
    "a scale of zero": (
        raw("embed_tokens_scales.bin", "<f2", lambda scales: scales * 0),
        "embed_tokens: scales",
    ),
    "a row too few": (
        raw("embed_tokens_per_layer_q8.bin", np.int8, lambda codes: codes[:-280]),
        "embed_tokens_per_layer_q8.bin has",
    ),
    "a row of another scale": (raw("embed_tokens_q8.bin", np.int8, zeroed), "reach their scale"),
    "codes of fp16": (
        raw("embed_tokens_q8.bin", np.int8, lambda codes: codes.astype("<f2")),
        "embed_tokens_q8.bin has",
    ),
    "no sines": (without("sin_full.npy"), "sin_full.npy is missing"),
    "every pair turns": (angles("cos_full.npy", all_pairs), "cos_full: other angles"),
    "sines for cosines": (angles("cos_sliding.npy", lambda one: np.roll(one, 1, 0)), "other angl"),
    "angles in fp32": (angles("sin_sliding.npy", lambda one: one.astype("f4")), "sin_sliding"),
    "too few positions": (angles("cos_full.npy", lambda one: one[:CONTEXT]), "cos_full.npy"),
    "columns first": (angles("sin_full.npy", np.asfortranarray), "sin_full.npy"),
    "no tokenizer": (without("hf_model/tokenizer.json"), "tokenizer.json is missing"),
    "no folder of a tokenizer": (without("hf_model"), "config.json is missing"),
}


def test_it_loads_what_was_compiled(sound):
    assert runtime.load(sound, rotary=ROTARY).verify == 3


@pytest.mark.parametrize("case", MUTANTS)
def test_it_fails_on(sound, tmp_path, case):
    mutate, message = MUTANTS[case]
    folder = tmp_path / "bundle"
    shutil.copytree(sound, folder)
    if isinstance(mutate, tuple):
        chunk, change = mutate
        described(change)(folder, chunk)
    else:
        mutate(folder)
    with pytest.raises(UnloadableError, match=message):
        runtime.load(folder, rotary=ROTARY)


def test_it_fails_on_heads_of_other_widths(sound):
    """The runtime's own widths are constants, and a tiny model has others."""
    with pytest.raises(UnloadableError, match="cos_s is"):
        runtime.load(sound)


def test_it_takes_three_chunks_for_what_they_are(sound, tmp_path):
    """Two packages of a merged layout beside four others are taken instead of them."""
    folder = tmp_path / "bundle"
    shutil.copytree(sound, folder)
    for name in ("chunk2_3way", "chunk3_3way"):
        shutil.copytree(folder / "chunk2.mlpackage", folder / f"{name}.mlpackage")
    with pytest.raises(UnloadableError, match="chunk3_3way takes"):
        runtime.load(folder, rotary=ROTARY)
