"""What a config.json says, in every spelling, and what is refused by name."""

import json
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from topoc.dsl.diagnostic import Place, TopocError
from topoc.dsl.model import Kind
from topoc.lowering import architecture

MODELS = Path(__file__).parent.parent / "topologies" / "models"
TINY = {
    "model_type": "gemma3_text",
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "vocab_size": 97,
    "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
    "sliding_window": 8,
    "max_position_embeddings": 128,
    "query_pre_attn_scalar": 24,
    "rms_norm_eps": 1e-6,
    "rope_theta": 1e6,
    "rope_local_base_freq": 1e4,
    "hidden_activation": "gelu_pytorch_tanh",
    "tie_word_embeddings": True,
    "bos_token_id": 2,
    "eos_token_id": 1,
}


@pytest.fixture
def read(tmp_path):
    def one(without=(), **changes):
        config = {key: value for key, value in TINY.items() if key not in without} | changes
        file = tmp_path / "config.json"
        file.write_text(json.dumps(config))
        return architecture.read(file)

    return one


@pytest.fixture
def refuses(read):
    def one(without=(), **changes):
        with pytest.raises(TopocError) as caught:
            read(without, **changes)
        return [
            (one.code, one.at.at.part if isinstance(one.at.at, Place) else "", one.message)
            for one in caught.value.findings
        ]

    return one


def nested(**changes):
    text = {k: v for k, v in TINY.items() if k not in {"tie_word_embeddings", "eos_token_id"}}
    return {"model_type": "gemma3", "text_config": text, "vision_config": {}} | changes


def test_reads_the_shipped_model():
    found = architecture.read(MODELS / "gemma3-270m.json")
    assert (found.family, found.hidden, found.vocabulary, found.tied) == (
        "gemma3",
        640,
        262144,
        True,
    )
    assert [i for i, layer in enumerate(found.layers) if layer.kind is Kind.FULL] == [5, 11, 17]
    assert {layer.window for layer in found.layers if layer.kind is Kind.SLIDING} == {512}
    assert {layer.window for layer in found.layers if layer.kind is Kind.FULL} == {None}
    assert (found.rope("sliding").theta, found.rope("full").theta) == (1e4, 1e6)
    assert (found.attention_scale, found.embed_multiplier) == (256**-0.5, 640**0.5)
    assert len(found.tensors) == 236
    assert found.notices == ()


def test_the_layer_table_counts_parameters():
    table = architecture.layers(MODELS / "gemma3-270m.json")
    total = sum(layer.parameters for layer in table.layers) + table.embed_parameters + 640
    assert total == 268_098_176
    assert table.head_parameters == table.embed_parameters == 262144 * 640
    assert all(layer.kv_weights and layer.donor is None for layer in table.layers)


def test_reading_loads_no_heavy_library():
    code = (
        "import sys, pathlib; from topoc.lowering import architecture;"
        "architecture.layers(pathlib.Path(sys.argv[1]));"
        "heavy = {'torch', 'numpy', 'coremltools', 'gguf', 'transformers'} & set(sys.modules);"
        "sys.exit(repr(heavy) if heavy else 0)"
    )
    subprocess.run([sys.executable, "-c", code, MODELS / "gemma3-270m.json"], check=True)


def test_a_folder_stands_for_its_config(read, tmp_path):
    assert read() == architecture.read(tmp_path)


def test_a_head_is_wanted_only_where_it_is_not_tied(read):
    assert "head" not in [one.role for one in read().tensors]
    assert "head" in [one.role for one in read(tie_word_embeddings=False).tensors]


def test_roles_are_the_agreed_ones(read):
    roles = {one.role for one in read().tensors if "." not in one.role or ".1." in one.role}
    layer = "q k v o q_norm k_norm gate up down"
    layer += " input_norm post_attention_norm pre_mlp_norm post_mlp_norm"
    assert roles == {"embed", "norm", *(f"layers.1.{one}" for one in layer.split())}


# --- rope -----------------------------------------------------------------------------------


NESTED_ROPE = {
    "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
    "full_attention": {"rope_type": "default", "rope_theta": 1e6},
}
FLAT_ROPE = ("rope_theta", "rope_local_base_freq")


def test_three_spellings_of_rope_are_one(read):
    plain = read()
    assert read(FLAT_ROPE, rope_parameters=NESTED_ROPE).ropes == plain.ropes
    assert read(rope_parameters=NESTED_ROPE).ropes == plain.ropes
    assert read(rope_scaling=None, rope_parameters=None).ropes == plain.ropes


def test_scaling_is_for_full_layers_only(read):
    old = {"type": "linear", "factor": 8.0}
    both = NESTED_ROPE | {"full_attention": {"rope_type": "linear", "rope_theta": 1e6, "factor": 8}}
    for found in (
        read(rope_scaling=old),
        read(rope_scaling={"rope_type": "linear", "factor": 8.0}),
        read(FLAT_ROPE, rope_parameters=both),
    ):
        assert (found.rope("sliding").factor, found.rope("full").factor) == (1.0, 8.0)


def test_a_silent_config_gets_the_family_bases_and_says_so(read):
    found = read(FLAT_ROPE)
    assert (found.rope("sliding").theta, found.rope("full").theta) == (1e4, 1e6)
    assert len(found.notices) == 2
    assert all("theta" in one or "freq" in one for one in found.notices)


@pytest.mark.parametrize(
    "changes",
    [
        {"rope_parameters": NESTED_ROPE | {"full_attention": {"rope_theta": 5e5}}},
        {"rope_parameters": NESTED_ROPE, "rope_local_base_freq": 2e4},
        {"rope_parameters": NESTED_ROPE, "rope_scaling": {"type": "linear", "factor": 8}},
        {"rope_scaling": {"type": "linear", "rope_type": "default", "factor": 1.0}},
        {"rope_scaling": {"rope_type": "default", "factor": 2.0}},
    ],
)
def test_rope_that_contradicts_itself_is_refused(refuses, changes):
    assert [code for code, _, _ in refuses(**changes)] == ["model.contradictory"]


@pytest.mark.parametrize("kind", ["yarn", "dynamic", "longrope", "llama3", "proportional", "x"])
def test_other_rope_types_are_refused_by_name(refuses, kind):
    ((code, part, message),) = refuses(rope_scaling={"rope_type": kind, "factor": 2.0})
    assert (code, part) == ("model.not-lowered", "rope_scaling.rope_type")
    assert f"`{kind}`" in message


def test_unknown_rope_fields_are_refused(refuses):
    spelled = NESTED_ROPE | {"sliding_attention": {"rope_theta": 1e4, "mscale": 0.7}}
    ((code, part, _),) = refuses(rope_parameters=spelled)
    assert (code, part) == ("model.not-lowered", "rope_parameters.sliding_attention.mscale")
    flat = {"rope_type": "default", "rope_theta": 1e6}
    parts = {part for _, part, _ in refuses(rope_parameters=flat)}
    assert parts == {"rope_parameters.rope_theta", "rope_parameters.rope_type"}


# --- layers ---------------------------------------------------------------------------------


def test_an_explicit_list_of_kinds_is_taken_as_it_is(read):
    letters = "fssfsf"
    names = {"f": "full_attention", "s": "sliding_attention"}
    found = read(
        layer_types=[names[one] for one in letters], num_hidden_layers=6, _sliding_window_pattern=2
    )
    assert "".join(layer.kind.value[0] for layer in found.layers) == letters


def test_a_period_counts_where_there_is_no_list(read):
    found = read(["layer_types"], num_hidden_layers=7, sliding_window_pattern=3)
    assert [layer.kind.value[0] for layer in found.layers] == list("ssfssfs")
    found = read(["layer_types"], num_hidden_layers=7)
    assert [layer.kind.value[0] for layer in found.layers] == list("sssssfs")
    assert any("sliding_window_pattern" in one for one in found.notices)


def test_a_private_period_alone_is_refused(refuses):
    ((code, _, _),) = refuses(["layer_types"], _sliding_window_pattern=2)
    assert code == "model.contradictory"


def test_layer_lists_that_do_not_fit_are_refused(refuses):
    for count in (2, 4):
        ((code, part, message),) = refuses(num_hidden_layers=count)
        assert (code, part) == ("model.malformed", "layer_types")
        assert "names 3 layers" in message
        assert message.endswith(f"is {count}")
    ((code, _, message),) = refuses(
        layer_types=["full_attention", "chunked_attention", "full_attention"]
    )
    assert code == "model.not-lowered"
    assert "layer 1" in message
    assert "chunked_attention" in message
    assert refuses(layer_types="full_attention")[0][0] == "model.malformed"


def test_a_sliding_layer_needs_a_window(refuses, read):
    assert refuses(sliding_window=None)[0][1] == "sliding_window"
    found = read(sliding_window=None, layer_types=["full_attention"] * 3)
    assert {layer.window for layer in found.layers} == {None}
    assert [name for name, _ in found.ropes] == ["full"]


def test_head_dim_is_its_own_number(read, refuses):
    shapes = {one.role: one.shape for one in read().tensors}
    assert shapes["layers.0.q"] == (128, 64)
    assert shapes["layers.0.o"] == (64, 128)
    assert shapes["layers.0.k"] == (64, 64)
    found = read(["head_dim"])
    assert found.layers[0].head_dim == 256
    assert any("head_dim" in one for one in found.notices)
    assert "odd" in refuses(head_dim=31)[0][2]
    assert "evenly" in refuses(num_key_value_heads=3)[0][2]


# --- refusals -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("attention_bias", True),
        ("attn_logit_softcapping", 50.0),
        ("attn_logit_softcapping", 0.0),
        ("use_bidirectional_attention", True),
        ("quantization", {"bits": 4}),
        ("quantization_config", {"quant_method": "gptq"}),
        ("num_experts", 8),
        ("num_local_experts", 8),
        ("num_kv_shared_layers", 2),
        ("partial_rotary_factor", 0.5),
        ("is_encoder_decoder", True),
        ("hidden_activation", "gelu"),
        ("residual_multiplier", 0.2),
        ("query_rescale_scalar", 1.0),
    ],
)
def test_what_has_no_lowering_is_refused_by_name(refuses, field, value):
    ((code, part, message),) = refuses(**{field: value})
    assert (code, part) == ("model.not-lowered", field)
    assert field in message or str(value) in message


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("attention_bias", False),
        ("attn_logit_softcapping", None),
        ("use_bidirectional_attention", None),
        ("quantization_config", None),
        ("num_experts", 0),
        ("final_logit_softcapping", None),
        ("final_logit_softcapping", 0.0),
        ("torch_dtype", "bfloat16"),
        ("dtype", "float32"),
        ("transformers_version", "4.57.0"),
        ("some_new_thing", None),
    ],
)
def test_what_asks_for_nothing_changes_nothing(read, field, value):
    assert read(**{field: value}) == read()


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("hidden_size", "64"),
        ("hidden_size", 64.0),
        ("hidden_size", True),
        ("hidden_size", None),
        ("hidden_size", -64),
        ("hidden_size", 10**40),
        ("num_hidden_layers", 10**9),
        ("head_dim", None),
        ("rms_norm_eps", 0),
        ("rms_norm_eps", "1e-6"),
        ("rms_norm_eps", float("nan")),
        ("tie_word_embeddings", 1),
        ("hidden_activation", 3),
        ("sliding_window", 0),
        ("sliding_window", 2.5),
        ("rope_theta", [1e6]),
        ("rope_parameters", 3),
        ("eos_token_id", "1"),
        ("eos_token_id", [1, None]),
        ("final_logit_softcapping", "30"),
        ("final_logit_softcapping", False),
        ("query_pre_attn_scalar", -1),
    ],
)
def test_wrong_types_and_sizes_are_named(refuses, field, value):
    findings = refuses(**{field: value})
    assert ("model.malformed", field) in [(code, part) for code, part, _ in findings]


def test_all_findings_come_at_once(refuses):
    findings = refuses(attention_bias=True, hidden_size="x", head_dim=31, surprise=1)
    assert {part for _, part, _ in findings} == {
        "attention_bias", "hidden_size", "head_dim", "surprise",
    }  # fmt: skip


def test_messages_keep_the_house_style(refuses):
    for _, _, message in refuses(attention_bias=True, hidden_size="x", head_dim=31, surprise=1):
        assert message[-1] != "."
        assert len(message) <= 100


def test_softcap_and_stop_tokens(read, tmp_path):
    assert read(final_logit_softcapping=30.0).final_softcap == 30.0
    (tmp_path / "generation_config.json").write_text('{"eos_token_id": [1, 106]}')
    assert read(eos_token_id=[1, 5]).eos == (1, 5, 106)
    assert read(eos_token_id=None).eos == (1, 106)


def test_model_types_that_are_not_known_are_named(refuses):
    for name in ("qwen3_moe", "gemma3n", None, 3, ["gemma3"]):
        ((code, part, _),) = refuses(model_type=name)
        assert (code, part) == ("model.not-lowered", "model_type")


# --- nested ---------------------------------------------------------------------------------


def write(folder, config):
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def test_a_nested_text_model_is_the_flat_one(read, tmp_path):
    flat = read()
    found = architecture.read(write(tmp_path, nested()))
    assert (found.layers, found.ropes, found.tensors) == (flat.layers, flat.ropes, flat.tensors)
    assert found.tied


def test_a_sparse_nested_config_takes_the_class_defaults(tmp_path):
    text = {
        "hidden_size": 2560,
        "intermediate_size": 10240,
        "model_type": "gemma3_text",
        "num_hidden_layers": 34,
        "rope_scaling": {"factor": 8.0, "rope_type": "linear"},
        "sliding_window": 1024,
    }
    config = nested(text_config=text, eos_token_id=[1, 106], mm_tokens_per_image=256)
    found = architecture.read(write(tmp_path, config))
    layer = found.layers[5]
    assert (layer.heads, layer.kv_heads, layer.head_dim) == (8, 4, 256)
    assert (found.vocabulary, found.positions, found.eos) == (262208, 131072, (1, 106))
    assert found.rope("full").factor == 8.0
    assert any("num_attention_heads" in one for one in found.notices)


def test_tying_is_what_the_outer_object_says(tmp_path):
    text = nested()["text_config"] | {"tie_word_embeddings": False}
    found = architecture.read(write(tmp_path, nested(text_config=text)))
    assert found.tied
    assert any("passed over" in one for one in found.notices)
    assert not architecture.read(write(tmp_path, nested(tie_word_embeddings=False))).tied


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"hidden_size": 128}, "model.contradictory"),
        ({"text_config": None}, "model.malformed"),
        ({"text_config": [1]}, "model.malformed"),
        ({"quantization_config": {"bits": 4}}, "model.not-lowered"),
        ({"mystery": 1}, "model.not-lowered"),
    ],
)
def test_nested_configs_that_do_not_hold_are_refused(tmp_path, changes, code):
    with pytest.raises(TopocError) as caught:
        architecture.read(write(tmp_path, nested(**changes)))
    assert code in [one.code for one in caught.value.findings]


# --- files ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text",
    [b"", b"{", b"[]", b"null", b"\xff\xfe\x00", b'{"a": 1, "a": 2}', b"[" * 100_000, b"9" * 9999],
)
def test_what_is_no_config_is_unreadable(tmp_path, text):
    (tmp_path / "config.json").write_bytes(text)
    with pytest.raises(TopocError) as caught:
        architecture.read(tmp_path)
    assert [one.code for one in caught.value.findings] == ["model.unreadable"]


def test_no_config_is_missing(tmp_path):
    for path in (tmp_path, tmp_path / "other.json"):
        with pytest.raises(TopocError) as caught:
            architecture.read(path)
        assert [one.code for one in caught.value.findings] == ["model.missing"]


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3)
    ),
    max_leaves=6,
)
FIELDS = [*TINY, "rope_scaling", "rope_parameters", "text_config", "final_logit_softcapping", "x"]


@settings(max_examples=400, deadline=None)
@given(st.dictionaries(st.sampled_from(FIELDS), JSON, max_size=4), st.booleans())
def test_any_values_give_an_architecture_or_findings(changes, wrapped):
    config = nested(text_config=TINY | changes) if wrapped else TINY | changes
    with tempfile.TemporaryDirectory() as folder:
        try:
            found = architecture.read(write(Path(folder), config))
        except TopocError as problem:
            found = problem
    assert isinstance(found, architecture.Architecture) or found.findings


# --- the reference --------------------------------------------------------------------------


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"rope_scaling": {"rope_type": "linear", "factor": 4.0}},
        {"layer_types": None, "num_hidden_layers": 8, "sliding_window_pattern": 3},
        {"layer_types": None, "num_hidden_layers": 8},
        {"rope_theta": None, "rope_local_base_freq": None},
    ],
)
def test_agrees_with_transformers_on_what_it_writes(tmp_path, changes):
    """The config as transformers reads it, and the one that it then writes, say the same."""
    transformers = pytest.importorskip("transformers")
    config = {key: value for key, value in (TINY | changes).items() if value is not None}
    theirs = transformers.Gemma3TextConfig(**config)
    ours = architecture.read(write(tmp_path, config))
    theirs.save_pretrained(tmp_path)
    again = architecture.read(tmp_path)
    assert (again.layers, again.ropes, again.tensors) == (ours.layers, ours.ropes, ours.tensors)
    kinds = [f"{layer.kind.value}_attention" for layer in ours.layers]
    assert kinds == theirs.layer_types
    for name, rope in ours.ropes:
        said = theirs.rope_parameters[f"{name}_attention"]
        assert (rope.theta, rope.factor) == (said["rope_theta"], said.get("factor", 1.0))
