"""Gemma 4: what configs say in every spelling, what binds, and transformers' numbers."""

import json
import tempfile
from copy import deepcopy
from math import prod
from pathlib import Path

import layer_tables
import numpy as np
import pytest
import torch
from attrs import evolve
from compiled import compile_text, engine_of, topology_text
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file
from tiny_bundle import tiny_manifest, write_bundle
from tiny_gemma4 import E2B, E4B, PLE_WIDTH, spelled, text_config, tiny_gemma4
from tiny_reader import Reader

from topoc.dsl.diagnostic import Place, TopocError
from topoc.dsl.load import load
from topoc.dsl.model import Kind
from topoc.lowering import architecture
from topoc.lowering.bundle.reader import open_bundle
from topoc.lowering.calibration import calibration_tokens
from topoc.lowering.checkpoint import bind as binding
from topoc.lowering.checkpoint.bind import PREFIXES, bind
from topoc.lowering.checkpoint.open import open_checkpoint
from topoc.lowering.checkpoint.random import Random
from topoc.lowering.checkpoint.reader import Entry
from topoc.lowering.engine.driver import Engine
from topoc.lowering.interpret.ranges import measure
from topoc.lowering.interpret.walk import Walk
from topoc.lowering.ir import DType
from topoc.lowering.parity.oracle import Oracle
from topoc.lowering.parity.proof import prove, telling_tokens
from topoc.lowering.plan import plan
from topoc.lowering.rope import table
from topoc.lowering.stored import Rounded
from topoc.lowering.tables import per_layer_bytes, table_bytes, write_per_layer, write_table

torch.set_num_threads(1)

MODELS = Path(__file__).parent.parent / "topologies" / "models"
TOKENS = [2, 0, 130] + [(37 * i) % 131 for i in range(45)]
SMALL = {"layers": 10, "period": 5, "shared": 5, "kv_heads": 2, "double": True}
VARIANTS = {
    "e2b": E2B,
    "e4b": E4B | {"spelling": "5", "nested": True, "redundant": True},
    "own": E2B | {"shared": 0},
    "plain": E2B | {"hidden_size_per_layer_input": 0},
}


def write(folder, config):
    (folder / "config.json").write_text(json.dumps(config))
    return folder


@pytest.fixture
def read(tmp_path):
    """The architecture of a small E2B, some of whose fields are other or none."""

    def one(without=(), **changes):
        config = text_config(**E2B) | changes
        return architecture.read(
            write(tmp_path, {key: config[key] for key in config if key not in without})
        )

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


def said(found):
    """All that a config decides, but for where it was read and what it left open."""
    shown = {one.name for one in architecture.Architecture.__attrs_attrs__}
    return {name: getattr(found, name) for name in shown - {"config", "notices"}}


# --- the shipped models ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "rows", "heads", "widths"),
    [
        ("gemma4-e2b", layer_tables.E2B, layer_tables.E2B_HEADS, (6144, 12288)),
        ("gemma4-e4b", layer_tables.E4B, layer_tables.E4B_HEADS, (10240, 10240)),
    ],
)
def test_shipped_models_have_the_layers_that_are_written_down(name, rows, heads, widths):
    found = architecture.read(MODELS / f"{name}.json")
    head_dims, kv_heads = heads
    letters = {Kind.SLIDING: "S", Kind.FULL: "F"}
    told = [(i, letters[one.kind], one.donor) for i, one in enumerate(found.layers)]
    assert told == [row[:3] for row in layer_tables.rows(rows)]
    for layer in found.layers:
        assert layer.head_dim == head_dims[letters[layer.kind]]
        assert (layer.heads, layer.kv_heads) == (8, kv_heads)
        assert layer.window == (512 if layer.kind is Kind.SLIDING else None)
        assert layer.mlp_width == widths[layer.donor is not None]
    assert found.notices == ()


@pytest.mark.parametrize(
    ("name", "written", "hidden"),
    [("e2b", layer_tables.gemma4, 1536), ("e4b", layer_tables.gemma4_e4b, 2560)],
)
def test_shipped_models_are_what_tests_of_the_language_assume(name, written, hidden):
    found, wanted = architecture.layers(MODELS / f"gemma4-{name}.json"), written()
    for one, other in zip(found.layers, wanted.layers, strict=True):
        assert one.parameters == pytest.approx(other.parameters, rel=0.2)
        for part in ("kind", "window", "donor", "kv_weights", "heads", "kv_heads", "head_dim"):
            assert getattr(one, part) == getattr(other, part)
    assert (found.hidden, found.vocabulary, found.has_ple) == (hidden, 262_144, True)
    assert (found.positions, found.head_parameters) == (131_072, wanted.head_parameters)


def test_shipped_models_have_the_scales_of_the_family():
    found = architecture.read(MODELS / "gemma4-e2b.json")
    assert (found.attention_scale, found.embed_multiplier) == (1.0, 1536**0.5)
    assert (found.final_softcap, found.tied, found.layer_scalar) == (30.0, True, True)
    assert (found.bos, found.eos, found.reach) == ((2,), (1,), 262_144)
    assert found.norms == architecture.Norms(
        eps=1e-6, post_attention=True, post_mlp=True, query_key=True, value=True
    )
    assert found.per_layer == architecture.PerLayer(
        width=256,
        vocabulary=262_144,
        row_multiplier=16.0,
        projection_factor=1536**-0.5,
        combined_factor=2**-0.5,
    )
    assert found.rope("sliding") == architecture.Rope(theta=1e4, width=256)
    assert found.rope("full") == architecture.Rope(theta=1e6, width=512, turning=64)
    assert sum(prod(one.shape) for one in found.tensors) == 4_628_569_379


# --- spellings ------------------------------------------------------------------------------


@pytest.mark.parametrize("pattern", [E2B, E4B], ids=["e2b", "e4b"])
@pytest.mark.parametrize("nested", [False, True])
@pytest.mark.parametrize("spelling", ["published", "5"])
def test_every_spelling_says_the_same(tmp_path, pattern, spelling, nested):
    config = text_config(**pattern)
    flat = architecture.read(write(tmp_path, config))
    found = architecture.read(write(tmp_path, spelled(config, spelling, nested=nested)))
    assert said(found) == said(flat)
    assert found.notices == ()


def test_roles_are_the_agreed_ones(read):
    found = read()
    layer = "q o q_norm gate up down input_norm post_attention_norm pre_mlp_norm post_mlp_norm"
    layer += " ple_gate ple_projection ple_norm scalar"
    kv = {"k", "v", "k_norm"}

    def of(index):
        start = f"layers.{index}."
        return {one.role.removeprefix(start) for one in found.tensors if start in one.role}

    assert of(14) == {*layer.split(), *kv}
    assert of(15) == set(layer.split())
    outside = {one.role for one in found.tensors if not one.role.startswith("layers.")}
    assert outside == {"embed", "ple_table", "ple.projection", "ple.norm", "norm"}
    shapes = {one.role: one.shape for one in found.tensors}
    assert shapes["ple_table"] == (131, 35 * PLE_WIDTH)
    assert shapes["ple.projection"] == (35 * PLE_WIDTH, 48)
    assert (shapes["layers.4.k"], shapes["layers.3.k"]) == ((32, 48), (16, 48))
    assert (shapes["layers.3.gate"], shapes["layers.20.gate"]) == ((40, 48), (80, 48))
    assert shapes["layers.20.scalar"] == (1,)


def test_nothing_of_per_layer_vectors_is_wanted_where_they_are_off(read):
    found = read(hidden_size_per_layer_input=0, vocab_size_per_layer_input=0)
    assert found.per_layer is None
    assert not [one.role for one in found.tensors if "ple" in one.role]
    assert found.reach == 131


def test_a_sparse_config_takes_the_class_defaults(tmp_path):
    found = architecture.read(write(tmp_path, {"model_type": "gemma4_text"}))
    assert len(found.layers) == 30
    assert [i for i, one in enumerate(found.layers) if one.kind is Kind.FULL] == [5, 11, 17, 23, 29]
    assert {(one.kind.value, one.head_dim) for one in found.layers} == {
        ("sliding", 256),
        ("full", 512),
    }
    assert {one.kv_heads for one in found.layers} == {4}
    assert found.rope("full") == architecture.Rope(theta=1e6, width=512, turning=64)
    assert any("global_head_dim" in one for one in found.notices)
    assert any("rope_parameters" in one for one in found.notices)
    other = write(tmp_path, {"model_type": "gemma4_text", "num_hidden_layers": 8})
    last = [one.kind.value[0] for one in architecture.read(other).layers]
    assert "".join(last) == "sssssfsf"


def test_a_table_of_layers_counts_before_the_width_of_a_kind(read):
    wide = {str(i): {"head_dim": 64} for i in range(35) if i % 5 == 4}
    found = read(per_layer_config=wide)
    assert {one.head_dim for one in found.layers if one.kind is Kind.FULL} == {64}
    assert any("global_head_dim" in one for one in found.notices)
    assert {one.head_dim for one in read(per_layer_config={}).layers} == {16}
    owners = {f"{i:02}": {"num_key_value_heads": 2} for i in range(35)}
    assert {one.kv_heads for one in read(per_layer_config=owners).layers} == {2}


def test_stop_tokens_of_a_nested_config(tmp_path):
    config = spelled(text_config(**E2B), nested=True) | {"eos_token_id": [1, 106]}
    assert architecture.read(write(tmp_path, config)).eos == (1, 106)


# --- refusals -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("attention_k_eq_v", True),
        ("attention_bias", True),
        ("enable_moe_block", True),
        ("num_experts", 8),
        ("top_k_experts", 2),
        ("moe_intermediate_size", 64),
        ("use_bidirectional_attention", "all"),
        ("quantization_config", {"quant_method": "gptq"}),
        ("attn_logit_softcapping", 50.0),
        ("rope_theta", 1e6),
        ("rope_scaling", {"rope_type": "linear", "factor": 2.0}),
        ("sliding_window_pattern", 5),
        ("query_pre_attn_scalar", 256),
        ("altup_num_inputs", 4),
        ("hidden_activation", "gelu"),
    ],
)
def test_what_has_no_lowering_is_refused_by_name(refuses, field, value):
    ((code, part, message),) = refuses(**{field: value})
    assert (code, part) == ("model.not-lowered", field)
    assert field in message or str(value) in message


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("attention_k_eq_v", None),
        ("num_experts", 0),
        ("use_bidirectional_attention", "vision"),
        ("torch_dtype", "bfloat16"),
        ("some_new_thing", None),
    ],
)
def test_what_asks_for_nothing_changes_nothing(read, field, value):
    assert read(**{field: value}) == read()


def test_kv_heads_of_a_kind_count_for_nothing_and_say_so(read):
    found = read(num_global_key_value_heads=2)
    assert said(found) == said(read())
    assert any("num_global_key_value_heads" in one for one in found.notices)


@pytest.mark.parametrize(
    ("shared", "words"),
    [(35, "35 of 35 layers"), (40, "40 of 35 layers"), (31, "layer 4 shares keys and values")],
)
def test_a_layer_that_shares_needs_one_that_makes(refuses, shared, words):
    ((_, part, message),) = refuses(num_kv_shared_layers=shared)
    assert part == "num_kv_shared_layers"
    assert words in message


def test_the_last_layer_must_be_full(refuses):
    kinds = [*text_config(**E2B)["layer_types"][:-1], "sliding_attention"]
    ((code, part, message),) = refuses(layer_types=kinds)
    assert (code, part) == ("model.not-lowered", "layer_types")
    assert "layer 34" in message


FULL = {"rope_type": "proportional", "rope_theta": 1e6, "partial_rotary_factor": 0.25}
SLIDING = {"rope_type": "default", "rope_theta": 1e4}


@pytest.mark.parametrize(
    ("full", "part"),
    [
        (None, "full_attention"),
        ({"rope_type": "proportional"}, "full_attention"),
        (FULL | {"rope_type": "yarn"}, "full_attention.rope_type"),
        (FULL | {"partial_rotary_factor": 1.5}, "full_attention.partial_rotary_factor"),
        (FULL | {"rope_type": "default"}, "full_attention.partial_rotary_factor"),
        (FULL | {"mscale": 0.7}, "full_attention.mscale"),
    ],
)
def test_rope_that_is_not_all_said_is_refused(refuses, full, part):
    found = refuses(rope_parameters={"full_attention": full, "sliding_attention": SLIDING})
    assert f"rope_parameters.{part}" in [one for _, one, _ in found]


@pytest.mark.parametrize(
    "changes",
    [
        {"global_head_dim": None},
        {"global_head_dim": 31},
        {"head_dim": 15},
        {"num_key_value_heads": 3},
        {"vocab_size_per_layer_input": 0},
        {"hidden_size_per_layer_input": -1},
        {"per_layer_config": {"4": {"head_dim": 32}}},
        {"per_layer_config": {"4": 32}},
        {"per_layer_config": {"35": {}}},
        {"per_layer_config": {"full_attention": {"head_dim": 32}}},
        {"per_layer_config": {"4": {}, "04": {}}},
        {"per_layer_config": {"4": {"intermediate_size": 8}}},
        {"per_layer_config": {"34": {"num_key_value_heads": 2}}},
        {"use_double_wide_mlp": 1},
        {"num_kv_shared_layers": None},
    ],
)
def test_fields_that_do_not_hold_are_named(refuses, changes):
    (field,) = changes
    findings = refuses(**changes)
    assert any(part.startswith(field) for _, part, _ in findings), findings
    assert all(len(message) <= 100 and message[-1] != "." for _, _, message in findings)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["4", "04", "head_dim", "x"]), inner, max_size=3)
    ),
    max_leaves=6,
)
FIELDS = [*text_config(**E2B), "per_layer_config", "text_config", "x"]


@settings(max_examples=150, deadline=None)
@given(st.dictionaries(st.sampled_from(FIELDS), JSON, max_size=4), st.booleans())
def test_any_values_give_an_architecture_or_findings(changes, nested):
    config = text_config(**E2B) | changes
    wrapped = {"model_type": "gemma4", "text_config": config}
    with tempfile.TemporaryDirectory() as folder:
        try:
            found = architecture.read(write(Path(folder), wrapped if nested else config))
        except TopocError as problem:
            found = problem
    assert isinstance(found, architecture.Architecture) or found.findings


# --- binding --------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory):
    """Each variant's folder, and transformers' model of it; made when asked for."""
    pytest.importorskip("transformers")
    made = {}

    def one(name):
        if name not in made:
            folder = tmp_path_factory.mktemp(name)
            made[name] = folder, tiny_gemma4(folder, **VARIANTS[name])
        return made[name]

    return one


def bound(folder):
    return bind(open_checkpoint(folder), architecture.read(folder))


@pytest.mark.parametrize("name", VARIANTS)
def test_every_weight_is_the_one_that_transformers_holds(checkpoints, name):
    folder, model = checkpoints(name)
    weights, theirs = bound(folder), model.model.state_dict()
    assert {spec.name for spec in weights.architecture.tensors} == theirs.keys()
    for spec in weights.architecture.tensors:
        assert torch.equal(weights.rows(spec.role, 0, spec.shape[0]), theirs[spec.name])


def test_keys_and_values_of_layers_that_share_are_passed_over_by_name(checkpoints):
    folder, _ = checkpoints("e4b")
    weights = bound(folder)
    assert len(weights.ignored) == 18 * 3
    assert all(".self_attn." in name for name in weights.ignored)
    assert weights.notices == ("54 tensors of layers that share keys and values are passed over",)


def rebound(folder, tmp_path, change):
    """The checkpoint of a folder with other tensors."""
    tensors = load_file(folder / "model.safetensors")
    change(tensors)
    save_file(tensors, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text((folder / "config.json").read_text())
    return bound(tmp_path)


@pytest.mark.parametrize("prefix", PREFIXES)
def test_they_are_passed_over_after_every_prefix(checkpoints, tmp_path, prefix):
    name = f"{prefix}layers.15.self_attn.v_proj.weight"
    weights = rebound(
        checkpoints("e2b")[0], tmp_path, lambda found: found.update({name: torch.ones(3)})
    )
    assert weights.ignored == (name,)


def test_those_of_a_layer_that_makes_its_own_are_no_leftovers(checkpoints, tmp_path):
    folder, _ = checkpoints("own")
    weights = bound(folder)
    assert weights.ignored == ()
    name = "model.layers.15.self_attn.v_norm.weight"
    with pytest.raises(TopocError, match=r"checkpoint\.extra"):
        rebound(folder, tmp_path, lambda found: found.update({name: torch.ones(16)}))


def test_a_missing_or_misshapen_weight_is_an_error(checkpoints, tmp_path):
    """A loader that takes what is there and skips the rest would run with drawn weights."""
    folder, _ = checkpoints("e2b")
    gone = (
        "layers.20.layer_scalar",
        "layers.3.self_attn.v_proj.weight",
        "embed_tokens_per_layer.weight",
    )

    def change(found):
        for name in gone:
            del found[f"model.{name}"]
        found["model.layers.7.per_layer_input_gate.weight"] = torch.ones(48, PLE_WIDTH)

    with pytest.raises(TopocError) as caught:
        rebound(folder, tmp_path, change)
    found = [(one.code, one.message) for one in caught.value.findings]
    assert [code for code, _ in found] == ["checkpoint.missing"] * 2 + [
        "checkpoint.shape",
        "checkpoint.missing",
    ]
    text = " ".join(message for _, message in found)
    assert all(name in text for name in gone)
    assert "48×8" in text


def test_gguf_names_are_those_of_the_gguf_package(read):
    constants = pytest.importorskip("gguf.constants")
    from gguf.tensor_mapping import TensorNameMap

    known = TensorNameMap(constants.MODEL_ARCH.GEMMA4, 35)
    for spec in read(tie_word_embeddings=False).tensors:
        name = spec.name.removesuffix(".weight")
        name = name if name == "lm_head" else f"model.{name}"
        assert spec.gguf == f"{known.get_name(name)}.weight"


def test_a_gguf_file_is_refused_by_name(read, tmp_path):
    gguf = pytest.importorskip("gguf")
    writer = gguf.GGUFWriter(tmp_path / "model.gguf", "gemma4")
    writer.add_tensor("output_norm.weight", np.ones(48, np.float32))
    for step in ("header", "kv_data", "tensors"):
        getattr(writer, f"write_{step}_to_file")()
    writer.close()
    with pytest.raises(TopocError, match="gemma4") as caught:
        bind(open_checkpoint(tmp_path / "model.gguf"), read())
    assert [one.code for one in caught.value.findings] == ["checkpoint.unknown-format"]
    assert "gemma4" not in binding.GGUF_FAMILIES


def test_seeded_weights_keep_the_stream_in_size(read):
    found = read()
    weights = bind(open_checkpoint("random:3"), found)
    scalars = np.array([weights.vector(f"layers.{i}.scalar").item() for i in range(35)])
    assert (np.abs(scalars - 1) < 0.5).all()
    assert len(set(scalars.tolist())) == 35
    gains = weights.vector("layers.0.input_norm")
    assert gains.mean() == pytest.approx(1, abs=0.1)
    peaks = [one.left for one in measure(found, weights, calibration_tokens(found, None))]
    assert max(peaks) < 1000
    assert min(peaks) > 0.1


def test_a_seeded_factor_is_near_one_whatever_gains_mean():
    entry = Entry(name="layers.0.scalar", shape=(1,), dtype="F32")
    for offset in (0.0, 1.0):
        value = Random(3, {entry.name: entry}, offset).rows(entry.name, 0, 1)
        assert value.item() == pytest.approx(1, abs=0.5)


# --- the reference --------------------------------------------------------------------------


@pytest.mark.parametrize("name", VARIANTS)
def test_agrees_with_transformers_on_what_it_writes(checkpoints, tmp_path, name):
    """The config as transformers reads it, and the one that it then writes, say the same."""
    folder, model = checkpoints(name)
    ours = architecture.read(folder)
    model.config.save_pretrained(tmp_path)
    assert said(architecture.read(tmp_path)) == said(ours)
    assert [f"{one.kind.value}_attention" for one in ours.layers] == model.config.layer_types
    for index, layer in enumerate(model.model.layers):
        spec, attention = ours.layers[index], layer.self_attn
        assert attention.is_kv_shared_layer == (spec.donor is not None)
        assert attention.head_dim == spec.head_dim
        assert attention.num_key_value_groups == spec.heads // spec.kv_heads
        assert attention.scaling == ours.attention_scale
        assert layer.mlp.intermediate_size == spec.mlp_width
        if spec.donor is not None:
            donor = model.model.layers[spec.donor].self_attn
            assert donor.store_full_length_kv
            assert donor.layer_type == attention.layer_type


@pytest.mark.parametrize("name", VARIANTS)
def test_layers_equal_those_of_transformers(checkpoints, name):
    """The stream before the last layer, through programs that one decoder layer lowers to."""
    folder, model = checkpoints(name)
    outputs = []
    hooks = [
        layer.register_forward_hook(lambda _, __, out: outputs.append(out[0]))
        for layer in model.model.layers
    ]
    Oracle(model).logits(TOKENS)
    for hook in hooks:
        hook.remove()
    weights = bound(folder)
    visits = Walk(weights.architecture, weights, [TOKENS]).visits()
    *_, last = (one for one in visits if one.layer is not None)
    wanted = outputs[-2].T[None, :, None]
    assert (last.before - wanted).abs().max() <= 1e-4 * wanted.std()


@pytest.mark.parametrize("name", ["e4b", "plain"])
def test_the_reference_reads_what_we_bind(checkpoints, name):
    folder, model = checkpoints(name)
    read = Oracle.of(folder / "config.json", bound(folder))
    assert np.array_equal(read.logits(TOKENS), Oracle(model).logits(TOKENS))


def test_rounding_touches_every_weight_and_comes_back(checkpoints):
    """Gains are stored as they are, and a layer's factor is no parameter but rounds too."""
    _, model = checkpoints("e2b")
    oracle = Oracle(model)
    before = {name: one.clone() for name, one in model.state_dict().items()}
    plain = oracle.logits(TOKENS)
    with oracle.rounded():
        for name, one in model.state_dict().items():
            assert torch.equal(one, before[name].half().float()), name
        rounded = oracle.logits(TOKENS)
        ids = torch.tensor([TOKENS])
        for rows in (model.model.embed_tokens_per_layer(ids), model.model.embed_tokens(ids)):
            assert torch.equal(rows, rows.half().float())
    assert all(torch.equal(one, before[name]) for name, one in model.state_dict().items())
    assert np.array_equal(oracle.logits(TOKENS), plain)
    assert 1e-4 < np.abs(rounded - plain).max() / plain.std() < 2e-2


def test_the_reference_looks_up_the_rows_that_ship(checkpoints):
    folder, model = checkpoints("e2b")
    oracle, weights = Oracle(model), bound(folder)
    plain = oracle.logits(TOKENS)
    rows = {name: weights.rows(name, 0, 131) for name in ("embed", "ple_table")}
    same = {name: rows[name].__getitem__ for name in rows}
    with oracle.tables(same):
        assert np.array_equal(oracle.logits(TOKENS), plain)
    for name in rows:
        with oracle.tables({name: lambda ids, of=name: rows[of][ids] * 1.5}):
            assert np.abs(oracle.logits(TOKENS) - plain).max() > 0.1 * plain.std()
    assert np.array_equal(oracle.logits(TOKENS), plain)


# --- every feature matters ------------------------------------------------------------------


def fill(part, value):
    def change(model):
        for name, one in model.state_dict().items():
            if part in name:
                one.fill_(value)

    return change


def turn_all(model):
    rope = model.model.rotary_emb
    width = 2 * len(rope.full_attention_inv_freq)
    rope.full_attention_inv_freq.copy_(5000.0 ** (-torch.arange(0, width, 2) / width))


def widen(model):
    model.config.sliding_window += 1


def uncap(model):
    model.config.final_logit_softcapping = None


def donate_earlier(kind):
    def change(model):
        of = [one.self_attn for one in model.model.layers]
        own = [one for one in of if one.layer_type == kind and not one.is_kv_shared_layer]
        own[-1].store_full_length_kv, own[-2].store_full_length_kv = False, True

    return change


def halve_width(model):
    for layer in model.model.layers:
        if layer.self_attn.is_kv_shared_layer:
            layer.mlp.down_proj.weight[:, layer.mlp.intermediate_size // 2 :] = 0


def forget_value_norm(model):
    for layer in model.model.layers:
        if not layer.self_attn.is_kv_shared_layer:
            layer.self_attn.v_norm = torch.nn.Identity()


CHANGES = {
    "layer factors": fill("layer_scalar", 1.0),
    "per-layer rows": fill("embed_tokens_per_layer", 0.0),
    "per-layer context": fill("per_layer_model_projection", 0.0),
    "query gains": fill("q_norm", 1.0),
    "key gains": fill("k_norm", 1.0),
    "value norm": forget_value_norm,
    "pairs that stand still": turn_all,
    "window": widen,
    "softcap": uncap,
    "sliding donor": donate_earlier("sliding_attention"),
    "full donor": donate_earlier("full_attention"),
    "wide MLP": halve_width,
}


@pytest.mark.parametrize("name", CHANGES)
def test_the_tiny_checkpoint_notices(checkpoints, name):
    """Otherwise a twin would agree with transformers although a feature is lowered wrongly."""
    model = deepcopy(checkpoints("e2b")[1])
    plain = Oracle(model).logits(TOKENS)
    CHANGES[name](model)
    changed = Oracle(model).logits(TOKENS)
    assert np.abs(changed - plain).max() > 0.2 * plain.std()


def test_the_tiny_checkpoint_says_varied_things_of_the_usual_size(checkpoints):
    for name in VARIANTS:
        logits = Oracle(checkpoints(name)[1]).logits(TOKENS)
        assert logits.std() == pytest.approx(3, abs=0.3)
        assert len(set(logits.argmax(1).tolist())) > len(TOKENS) / 2


# --- rope -----------------------------------------------------------------------------------


def test_the_full_table_is_that_of_transformers_and_not_of_all_pairs():
    """Of 256 pairs the first 64 turn; turning all of them is another model."""
    transformers = pytest.importorskip("transformers")
    from transformers.models.gemma4.modeling_gemma4 import Gemma4TextRotaryEmbedding

    file = MODELS / "gemma4-e2b.json"
    config = transformers.Gemma4TextConfig(**json.loads(file.read_text()))
    theirs = Gemma4TextRotaryEmbedding(config)
    ours, positions = architecture.read(file), 2048
    for kind in ("sliding", "full"):
        found = table(ours.rope(kind), positions, np.float32)
        ids = torch.arange(positions)[None]
        cos, sin = theirs(torch.zeros(1), ids, f"{kind}_attention")
        wanted = np.stack([cos[0].numpy(), sin[0].numpy()])
        # their angles are float32 products, off by half a step of 2048
        assert np.abs(found - wanted).max() < 2e-4
        assert np.abs(found - wanted)[:, :64].max() < 1e-5
    still = np.r_[64:256, 320:512]
    assert (found[0][:, still] == 1).all()
    assert (found[1][:, still] == 0).all()
    all_pairs = table(architecture.Rope(theta=1e6, width=512), positions, np.float32)
    assert np.abs(all_pairs - wanted).max() > 1.9
    assert all_pairs[1][1, 64] == pytest.approx(1e6**-0.25, rel=1e-3)


@pytest.mark.parametrize("share", [0.25, 0.3, 0.5, 1.0, 0.01, None])
@pytest.mark.parametrize("factor", [None, 3.0])
def test_any_share_of_pairs_turns_as_in_transformers(read, share, factor):
    transformers = pytest.importorskip("transformers")
    from transformers.models.gemma4.modeling_gemma4 import Gemma4TextRotaryEmbedding

    told = {"partial_rotary_factor": share, "factor": factor}
    full = FULL | told
    full = {name: value for name, value in full.items() if value is not None}
    parameters = {"full_attention": full, "sliding_attention": SLIDING}
    rope = read(rope_parameters=parameters).rope("full")
    config = transformers.Gemma4TextConfig(**text_config(**E2B, rope_parameters=parameters))
    theirs = Gemma4TextRotaryEmbedding(config).full_attention_inv_freq.double().numpy()
    angles = table(rope, 2, np.float64)
    assert np.allclose(angles[1][1, :16], np.sin(theirs), atol=1e-7)
    assert np.allclose(angles[0][1, 16:], np.cos(theirs), atol=1e-7)


def test_a_position_beyond_the_table_is_an_error_and_no_row_of_zeros(tmp_path):
    """Zeros for cosine and sine would make every key alike."""
    manifest = tiny_manifest()
    short = {name: evolve(one, positions=3) for name, one in manifest.ropes.items()}
    write_bundle(tmp_path / "short", evolve(manifest, ropes=short))
    engine = Engine(open_bundle(tmp_path / "short"), Reader())
    for token in (5, 6, 7):
        engine.feed([token])
    with pytest.raises(TopocError, match=r"run\.position-beyond-table"):
        engine.feed([8])


# --- what the host looks up -----------------------------------------------------------------

CHUNKS = "chunk a = {ple}L0-14\n  chunk b = L15-34 + norm + head(argmax)"


def planned(folder, *, ple="", precision="fp16", quantize=""):
    """The plan of two chunks over a checkpoint, and what writes its weights."""
    chunks = CHUNKS.format(ple=ple)
    body = f'model "config.json"\n  context 64\n  {chunks}\n  functions decode\n  {quantize}'
    (folder / "tiny.topo").write_text(f"topology tiny {{\n  {body}\n}}\n")
    topology, findings = load(folder / "tiny.topo", layers=architecture.layers)
    assert topology is not None, findings
    weights = bound(folder)
    laid = plan(topology, weights.architecture, dtype=DType(precision))
    told = []
    return laid, Rounded(weights, told.append), told


WHOLE = "quantize {\n    embed: none\n    ple_table: none\n  }"


@pytest.mark.parametrize("name", ["embed", "ple_table"])
@pytest.mark.parametrize(("precision", "dtype"), [("fp16", np.float16), ("fp32", np.float32)])
def test_a_whole_table_holds_the_rows_rounded_once(checkpoints, tmp_path, name, precision, dtype):
    folder, _ = checkpoints("e2b")
    laid, rounded, told = planned(folder, precision=precision, quantize=WHOLE)
    found = write_table(laid, rounded, tmp_path, name)
    stored = rounded.weights.rows(name, 0, 131).numpy()
    values = np.fromfile(tmp_path / found.path, dtype).reshape(found.rows, found.width)
    assert np.array_equal(values, stored.astype(dtype))
    assert (found.dtype, found.scales) == (precision, None)
    assert found.multiplier == (48**0.5 if name == "embed" else PLE_WIDTH**0.5)
    assert sum(told) == table_bytes(laid, name) == values.nbytes


@pytest.mark.parametrize("name", ["embed", "ple_table"])
def test_a_table_is_int8_a_row_by_default(checkpoints, tmp_path, name):
    laid, rounded, told = planned(checkpoints("e2b")[0])
    found = write_table(laid, rounded, tmp_path, name)
    stored = rounded.weights.rows(name, 0, 131).numpy()
    codes = np.fromfile(tmp_path / found.path, np.int8).reshape(stored.shape)
    scales = np.fromfile(tmp_path / found.scales, "<f4")[:, None]
    assert (np.abs(codes * scales - stored) <= scales * 0.5001).all()
    assert np.abs(codes).max(1).tolist() == [127] * 131
    assert sum(told) == table_bytes(laid, name)


def test_blocks_of_rows_make_the_same_table(checkpoints, tmp_path, monkeypatch):
    laid, rounded, _ = planned(checkpoints("e2b")[0])
    whole = write_table(laid, rounded, tmp_path, "ple_table")
    bytes_of = [(tmp_path / one).read_bytes() for one in (whole.path, whole.scales)]
    blocks, asked = type(rounded.weights).blocks, []

    def small(self, role, **options):
        asked.append(role)
        return blocks(self, role, 5 * 4 * 280, **options)

    monkeypatch.setattr(type(rounded.weights), "blocks", small)
    again = write_table(laid, rounded, tmp_path, "ple_table")
    assert [(tmp_path / one).read_bytes() for one in (again.path, again.scales)] == bytes_of
    assert asked == ["ple_table"]


def with_rows(folder, target, stored, dimensions):
    """The checkpoint of a folder, with a per-layer table of so many rows."""
    tensors = load_file(folder / "model.safetensors")
    name = "model.embed_tokens_per_layer.weight"
    tensors[name] = torch.cat([tensors[name], torch.ones_like(tensors[name])])[:stored].clone()
    save_file(tensors, target / "model.safetensors")
    return write(target, text_config(**dimensions, vocab_size_per_layer_input=stored))


@pytest.mark.parametrize("quantize", ["", WHOLE])
@pytest.mark.parametrize(("stored", "kept"), [(150, 131), (100, 100)])
def test_a_table_keeps_the_rows_that_tokens_have(checkpoints, tmp_path, stored, kept, quantize):
    with_rows(checkpoints("e2b")[0], tmp_path, stored, E2B)
    laid, rounded, _ = planned(tmp_path, quantize=quantize)
    found = write_table(laid, rounded, tmp_path, "ple_table")
    assert (found.rows, laid.architecture.reach) == (kept, kept)
    size = found.rows * found.width * (1 if found.scales else 2)
    assert (tmp_path / found.path).stat().st_size == size
    assert max(calibration_tokens(laid.architecture, None)) < kept


@pytest.mark.parametrize(("precision", "limit"), [("fp32", 1e-6), ("fp16", 2e-3)])
def test_the_host_combines_as_transformers_does(checkpoints, tmp_path, precision, limit):
    """By the formula of the manifest, from nothing but the files."""
    folder, model = checkpoints("e2b")
    laid, rounded, _ = planned(folder, precision=precision, quantize=WHOLE)
    told = write_per_layer(laid, rounded, tmp_path)
    dtype = {"fp32": np.float32, "fp16": np.float16}[told.dtype]
    looked_up = {}
    for name in (told.embedding, told.rows):
        made = write_table(laid, rounded, tmp_path, name)
        values = np.fromfile(tmp_path / made.path, dtype).reshape(made.rows, made.width)
        looked_up[name] = values[TOKENS].astype(np.float32) * np.float32(made.multiplier)
    projection, gain = (
        np.fromfile(tmp_path / path, dtype).astype(np.float32)
        for path in (told.projection, told.gain)
    )
    channels = told.layers * told.width
    context = looked_up[told.embedding] @ projection.reshape(channels, -1).T
    context = context.reshape(-1, told.layers, told.width) * told.projection_factor
    square = (context**2).mean(-1, keepdims=True)
    context = context / np.sqrt(square + told.eps) * gain
    rows = looked_up[told.rows].reshape(context.shape)
    found = (context + rows) * told.combined_factor

    ids, text = torch.tensor([TOKENS]), model.model
    embedded = text.embed_tokens(ids)
    wanted = text.project_per_layer_inputs(embedded, text.get_per_layer_inputs(ids))[0].numpy()
    assert np.abs(found - wanted).max() <= limit * np.abs(wanted).max()
    written = sum((tmp_path / path).stat().st_size for path in (told.projection, told.gain))
    assert written == per_layer_bytes(laid)


def test_nothing_is_written_where_a_package_combines(checkpoints, tmp_path):
    laid, rounded, told = planned(checkpoints("e2b")[0], ple="ple + ")
    assert write_per_layer(laid, rounded, tmp_path) is None
    assert (per_layer_bytes(laid), told, list(tmp_path.iterdir())) == (0, [], [])


@pytest.mark.parametrize("ple", ["ple + ", ""])
def test_a_bundle_with_int8_tables_is_proved_with_the_rows_that_ship(tmp_path, ple):
    pytest.importorskip("transformers")
    oracle = Oracle(tiny_gemma4(tmp_path / "checkpoint", **SMALL))
    text = topology_text(chunks=f"chunk all = {ple}L0-9 + norm + head(argmax)")
    text = text.replace("quantize { embed: none }", "")
    bundle = compile_text(text, tmp_path / "checkpoint", tmp_path / "bundle")
    assert {one.dtype for one in bundle.manifest.tables.values()} == {"int8"}
    assert (bundle.manifest.per_layer is None) == bool(ple)
    verdicts = list(prove(bundle, oracle, (0, 1, 7, 8, 17)))
    assert [one.gate for one in verdicts] == ["ii", "ii-unrounded", "iii"]
    for one in verdicts:
        assert one.kept, one
        assert "the int8 embedding and the int8 per-layer rows as shipped" in one.against


def test_a_token_beyond_the_per_layer_table_is_an_error(tmp_path):
    pytest.importorskip("transformers")
    tiny_gemma4(tmp_path / "checkpoint", **SMALL)
    folder = with_rows(tmp_path / "checkpoint", tmp_path, 100, SMALL)
    assert any("100" in one for one in architecture.read(folder).notices)
    text = topology_text(chunks="chunk all = ple + L0-9 + norm + head(argmax)")
    bundle = compile_text(text, folder, tmp_path / "bundle")
    with pytest.raises(TopocError, match=r"run\.no-row"):
        engine_of(bundle).feed([100])
    assert max(telling_tokens(bundle.manifest, 300)) == 99
