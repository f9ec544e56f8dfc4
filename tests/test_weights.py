"""Binding a checkpoint to an architecture: what fits, what is missing, what is too much."""

import os

import pytest
import torch
from safetensors.torch import save_file
from tiny_checkpoint import by_name, by_role, tiny

from topoc.dsl.diagnostic import TopocError
from topoc.lowering.checkpoint.bind import PREFIXES, bind
from topoc.lowering.checkpoint.digest import digest
from topoc.lowering.checkpoint.open import open_checkpoint

torch.set_num_threads(1)


@pytest.fixture
def bound(tmp_path):
    def one(change=None, prefix="model.", **config):
        found = tiny(tmp_path, **config)
        tensors = by_name(found, prefix)
        if change:
            change(tensors)
        save_file(
            {name: one.contiguous() for name, one in tensors.items()},
            tmp_path / "model.safetensors",
        )
        return bind(open_checkpoint(tmp_path), found)

    return one


@pytest.fixture
def refused(bound):
    def one(change=None, **config):
        with pytest.raises(TopocError) as caught:
            bound(change, **config)
        return [(one.code, one.message) for one in caught.value.findings]

    return one


def put(**tensors):
    return lambda found: found.update(tensors)


def drop(*names):
    return lambda found: [found.pop(name) for name in names]


@pytest.mark.parametrize("prefix", PREFIXES)
def test_every_prefix_leads_to_the_same_values(bound, prefix):
    weights = bound(prefix=prefix)
    for role, value in by_role(weights.architecture).items():
        assert torch.equal(weights.rows(role, 0, len(value)), value)


def test_blocks_cover_a_tensor_in_order(bound):
    weights = bound()
    value = by_role(weights.architecture)["embed"]
    blocks = list(weights.blocks("embed", 10 * 64 * 4))
    assert [len(one) for one in blocks] == [10] * 9 + [7]
    assert torch.equal(torch.cat(blocks), value)
    assert len(list(weights.blocks("embed", 1))) == 97
    assert torch.equal(torch.cat(list(weights.blocks("norm", 8))), weights.vector("norm"))
    assert weights.spec("norm").shape == (64,)
    with pytest.raises(IndexError):
        weights.rows("embed", 90, 98)


def test_blocks_of_a_run_cover_its_rows_and_no_others(bound):
    weights = bound()
    value = by_role(weights.architecture)["embed"]
    for first, last in ((0, 97), (0, 10), (5, 36), (96, 97)):
        blocks = list(weights.blocks("embed", 10 * 64 * 4, run=(first, last)))
        assert torch.equal(torch.cat(blocks), value[first:last])
        assert {len(one) for one in blocks[:-1]} <= {10}
    for wrong in ((90, 98), (-1, 3)):
        with pytest.raises(IndexError):
            list(weights.blocks("embed", run=wrong))


def test_only_the_rows_of_a_run_are_judged(bound):
    def change(tensors):
        tensors["model.embed_tokens.weight"][40, 3] = 1e6

    weights = bound(change)
    list(weights.blocks("embed", fp16=True, run=(0, 40)))
    list(weights.blocks("embed", fp16=True, run=(41, 97)))
    with pytest.raises(TopocError, match="1 value that is beyond fp16"):
        list(weights.blocks("embed", fp16=True, run=(40, 41)))


def test_mixed_types_bind(bound):
    def change(found):
        for number, (name, value) in enumerate(found.items()):
            found[name] = value.to((torch.float32, torch.float16, torch.bfloat16)[number % 3])

    weights = bound(change)
    for role, value in by_role(weights.architecture).items():
        assert torch.allclose(weights.rows(role, 0, len(value)), value, rtol=8e-3, atol=0)


def test_missing_tensors_come_all_at_once_with_their_shapes(refused):
    rest = ("embed_tokens", "norm", "layers.1.self_attn.o_proj", "layers.0.input_layernorm")
    names = [f"model.{one}.weight" for one in rest]
    findings = refused(drop(*names))
    assert [code for code, _ in findings] == ["checkpoint.missing"] * 4
    text = " ".join(message for _, message in findings)
    assert all(name.removeprefix("model.") in text for name in names)
    assert "97×64" in text
    assert "64×128" in text


def test_tensors_that_nothing_uses_are_refused(refused):
    names = [f"model.layers.{i}.self_attn.{p}_proj.bias" for i in (0, 1) for p in "qkv"]
    bias = {name: torch.zeros(4) for name in names}
    ((code, message),) = refused(put(**bias))
    assert code == "checkpoint.extra"
    assert message.startswith("6 stored tensors are used by nothing: `model.layers.0.self_attn.k")
    assert "2 more" in message


def test_other_towers_are_passed_over_and_counted(bound):
    names = ("vision_tower.vision_model.x", "model.vision_tower.x", "multi_modal_projector.y",
             "model.layers.0.self_attn.rotary_emb.inv_freq")  # fmt: skip
    weights = bound(put(**{name: torch.zeros(2) for name in names}))
    assert weights.ignored == tuple(sorted(names))
    assert any("4" in one for one in weights.notices)


@pytest.mark.parametrize(
    ("name", "shape"),
    [
        ("model.norm.weight", (1,)),
        ("model.norm.weight", (1, 64)),
        ("model.norm.weight", ()),
        ("model.layers.0.mlp.up_proj.weight", (64, 96)),
        ("model.layers.0.mlp.up_proj.weight", (96, 64, 1, 1)),
        ("model.layers.0.self_attn.q_proj.weight", (64, 64)),
    ],
)
def test_shapes_must_be_exact(refused, name, shape):
    ((code, message),) = refused(put(**{name: torch.zeros(shape)}))
    assert code == "checkpoint.shape"
    assert name in message


@pytest.mark.parametrize("dtype", [torch.float64, torch.int8, torch.uint8, torch.float8_e4m3fn])
def test_other_types_are_refused(refused, dtype):
    change = put(**{"model.norm.weight": torch.zeros(64).to(dtype)})
    assert [code for code, _ in refused(change)] == ["checkpoint.dtype"]


@pytest.mark.parametrize("end", ["qweight", "qzeros", "g_idx", "weight_packed", "weight_scale"])
def test_packed_weights_are_refused_up_front(refused, end):
    name = f"model.layers.0.mlp.up_proj.{end}"
    ((code, message),) = refused(put(**{name: torch.zeros(2, dtype=torch.int32)}))
    assert code == "checkpoint.quantised"
    assert name in message


def test_one_weight_under_two_prefixes_is_refused(refused):
    change = put(**{"language_model.model.norm.weight": torch.zeros(64)})
    assert [code for code, _ in refused(change)] == ["checkpoint.duplicate"]


# --- tying ----------------------------------------------------------------------------------

HEAD = "lm_head.weight"
EMBED = "model.embed_tokens.weight"


def test_tied_without_a_head(bound):
    assert "head" not in bound().names


def test_tied_with_an_equal_head(bound):
    weights = bound(lambda found: found.update({HEAD: found[EMBED].clone()}))
    assert any("equals" in one for one in weights.notices)
    assert "head" not in weights.names


def test_tied_with_another_head(refused):
    def change(found):
        found[HEAD] = found[EMBED].clone()
        found[HEAD][96, 63] += 1e-3

    assert [code for code, _ in refused(change)] == ["checkpoint.untied-head"]
    wide = put(**{HEAD: torch.zeros(97, 65)})
    assert [code for code, _ in refused(wide)] == ["checkpoint.untied-head"]


def test_tied_with_only_a_head(bound):
    weights = bound(lambda found: found.update({HEAD: found.pop(EMBED)}))
    assert weights.names["embed"] == HEAD
    assert any("embedding" in one for one in weights.notices)


def test_untied_with_a_head(bound):
    weights = bound(tie_word_embeddings=False)
    assert not torch.equal(weights.rows("head", 0, 9), weights.rows("embed", 0, 9))


def test_untied_without_a_head(refused):
    ((code, message),) = refused(drop(HEAD), tie_word_embeddings=False)
    assert code == "checkpoint.missing"
    assert "not tied" in message


# --- values ---------------------------------------------------------------------------------

DOWN = "model.layers.1.mlp.down_proj.weight"


def planted(*values):
    def change(found):
        for row, value in enumerate(values):
            found[DOWN][row * 20, 7] = value

    return change


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_values_that_are_no_numbers_are_refused(bound, value):
    weights = bound(planted(value, 1, value))
    for work in (
        lambda: list(weights.blocks("layers.1.down", 4000)),
        lambda: weights.rows("layers.1.down", 40, 41),
    ):
        with pytest.raises(TopocError, match=r"checkpoint\.not-finite"):
            work()
    with pytest.raises(TopocError, match="holds 2 values that are not finite"):
        list(weights.blocks("layers.1.down", 4000))
    assert weights.rows("layers.1.down", 1, 20).shape == (19, 96)


def test_values_beyond_fp16_are_counted_over_the_whole_tensor(bound):
    weights = bound(planted(7e4, -9e4, 6.5e4))
    with pytest.raises(TopocError) as caught:
        list(weights.blocks("layers.1.down", 4000, fp16=True))
    (finding,) = caught.value.findings
    assert finding.code == "checkpoint.beyond-fp16"
    assert "2 values" in finding.message
    assert "90000" in finding.message
    assert DOWN in finding.message
    assert len(torch.cat(list(weights.blocks("layers.1.down", 4000)))) == 64


def test_nothing_comes_after_a_value_that_cannot_be_used(bound):
    given = []
    blocks = bound(planted(1, 7e4)).blocks("layers.1.down", 5 * 96 * 4, fp16=True)
    with pytest.raises(TopocError):
        while True:
            given.append(len(next(blocks)))
    assert given == [5] * 4


def test_the_edge_of_fp16_is_where_rounding_overflows(bound):
    def fits(value):
        return torch.isfinite(torch.tensor(value).half())

    for value in (65504.0, 65519.0):
        assert fits(value)
        weights = bound(planted(value))
        assert len(list(weights.blocks("layers.1.down", fp16=True))) == 1
    assert not fits(65520.0)
    weights = bound(planted(65520.0))
    with pytest.raises(TopocError, match="beyond-fp16"):
        list(weights.blocks("layers.1.down", fp16=True))


# --- seeds ----------------------------------------------------------------------------------


def test_a_seed_gives_the_same_rows_however_they_are_read(tmp_path):
    found = tiny(tmp_path, vocab_size=9001, hidden_size=96)
    weights = bind(open_checkpoint("random:7"), found)
    whole = weights.rows("embed", 0, 9001)
    assert torch.equal(torch.cat(list(weights.blocks("embed", 4096 * 5))), whole)
    assert torch.equal(weights.rows("embed", 2729, 2732), whole[2729:2732])
    again = bind(open_checkpoint("random:7"), found)
    assert torch.equal(again.rows("embed", 9000, 9001), whole[9000:])
    other = bind(open_checkpoint("random:8"), found)
    assert not torch.equal(other.rows("embed", 0, 4), whole[:4])
    assert whole.std() == pytest.approx(96**-0.5, rel=0.02)
    assert len(torch.unique(whole[:, 0])) > 8900  # no tile repeats another


def test_gains_of_a_seed_are_near_one(tmp_path):
    found = tiny(tmp_path)
    weights = bind(open_checkpoint("random:0"), found)
    gains = weights.vector("layers.0.input_norm") + found.norms.offset
    assert gains.mean() == pytest.approx(1, abs=0.1)
    assert 0.05 < gains.std() < 0.2


def test_a_seed_is_pinned(tmp_path):
    """Bundles made from a seed must not change with the machine or the library."""
    weights = bind(open_checkpoint("random:7"), tiny(tmp_path))
    assert weights.rows("layers.0.q", 0, 1)[0, :4].tolist() == PINNED


PINNED = [0.2802390456199646, 0.1737315058708191, -0.013330535963177681, -0.006904776208102703]


def test_the_digest_of_a_seed_knows_the_shapes(tmp_path):
    one = bind(open_checkpoint("random:7"), tiny(tmp_path))
    two = bind(open_checkpoint("random:7"), tiny(tmp_path, intermediate_size=128))
    assert digest(one.reader) != digest(two.reader)
    assert digest(one.reader) != digest(bind(open_checkpoint("random:8"), one.architecture).reader)


# --- the reference --------------------------------------------------------------------------


@pytest.mark.parametrize("nested", [False, True])
def test_equals_what_transformers_holds(tmp_path, nested):
    os.environ["HF_HUB_OFFLINE"] = "1"
    transformers = pytest.importorskip("transformers")
    from tiny_checkpoint import CONFIG

    from topoc.lowering import architecture

    torch.manual_seed(0)
    config = transformers.Gemma3TextConfig(**CONFIG)
    if nested:
        vision = transformers.SiglipVisionConfig(
            hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2,
            image_size=28, patch_size=14,
        )  # fmt: skip
        whole = transformers.Gemma3Config(
            text_config=config, vision_config=vision, mm_tokens_per_image=4
        )
        model = transformers.Gemma3ForConditionalGeneration(whole)
        text = model.model.language_model
    else:
        model = transformers.Gemma3ForCausalLM(config)
        text = model.model
    with torch.no_grad():
        for value in model.parameters():
            value.normal_()
    model.save_pretrained(tmp_path)
    found = architecture.read(tmp_path)
    weights = bind(open_checkpoint(tmp_path), found)
    assert bool(weights.ignored) == nested
    theirs = dict(text.named_parameters())
    assert len(theirs) == len(found.tensors)
    for spec in found.tensors:
        assert torch.equal(weights.rows(spec.role, 0, spec.shape[0]), theirs[spec.name])
