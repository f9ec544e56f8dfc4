"""GGUF: our reader gives what the gguf package gives, and survives what is broken."""

import random
import struct

import numpy as np
import pytest
import torch
from tiny_checkpoint import tiny, write_gguf

from topoc.dsl.diagnostic import TopocError
from topoc.lowering.checkpoint.bind import bind
from topoc.lowering.checkpoint.gguf import open_file

gguf = pytest.importorskip("gguf")
pytest_plugins = ["real_model"]
WRITABLE = ["F32", "F16", "BF16", "Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1"]
DAMAGES = {"checkpoint.unreadable", "checkpoint.duplicate"}
K_QUANTS = ["Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K", "IQ4_NL", "IQ4_XS", "TQ1_0", "MXFP4"]


def codes(what, *args):
    with pytest.raises(TopocError) as caught:
        what(*args)
    return [one.code for one in caught.value.findings]


@pytest.fixture
def file(tmp_path):
    return tmp_path / "model.gguf"


@pytest.fixture
def small(file):
    """A file with one matrix and one vector, and metadata of every kind."""
    writer = gguf.GGUFWriter(file, "gemma3")
    writer.add_array("words", ["a", "", "ü", "▁▁"])
    writer.add_array("numbers", [1.5, -2.5])
    writer.add_array("ids", [1, 2, 3])
    writer.add_bool("flag", True)
    writer.add_string("text", "naïve")
    writer.add_uint64("large", 1 << 60)
    writer.add_tensor("m", np.arange(64, dtype=np.float32).reshape(4, 16))
    writer.add_tensor("v", np.arange(5, dtype=np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return file


def test_metadata_and_rows(small):
    reader = open_file(small)
    assert reader.metadata["words"] == ("a", "", "ü", "▁▁")
    assert reader.metadata["numbers"] == (1.5, -2.5)
    assert reader.metadata["ids"] == (1, 2, 3)
    assert reader.metadata["flag"] is True
    assert reader.metadata["text"] == "naïve"
    assert reader.metadata["large"] == 1 << 60
    assert reader.entries["m"].shape == (4, 16)
    assert reader.rows("m", 1, 3).tolist() == torch.arange(64.0).reshape(4, 16)[1:3].tolist()
    assert reader.rows("v", 1, 4).tolist() == [1, 2, 3]
    reader.rows("m", 0, 4).fill_(0)
    assert reader.rows("m", 0, 1).sum() == 120


@pytest.mark.parametrize("name", WRITABLE + K_QUANTS)
def test_every_format_is_what_the_package_makes_of_it(file, name):
    kind = gguf.GGMLQuantizationType[name]
    block, size = gguf.GGML_QUANT_SIZES[kind]
    width = max(64, block)
    if name in WRITABLE:
        data = np.random.default_rng(0).standard_normal((37, width)).astype(np.float32)
        stored = gguf.quants.quantize(data, kind)
    else:
        stored = np.random.default_rng(0).integers(0, 60, (37, size * width // block), np.uint8)
    writer = gguf.GGUFWriter(file, "gemma3")
    writer.add_tensor("m", stored, raw_dtype=None if name in {"F32", "F16"} else kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    wanted = gguf.quants.dequantize(np.ascontiguousarray(stored).view(np.uint8), kind)
    reader = open_file(file)
    assert reader.entries["m"].shape == (37, width)
    assert reader.entries["m"].dtype == name
    for start, stop in ((0, 37), (5, 6), (17, 37)):
        assert np.array_equal(reader.rows("m", start, stop).numpy(), wanted[start:stop])


def test_an_alignment_of_its_own(file):
    writer = gguf.GGUFWriter(file, "gemma3")
    writer.add_custom_alignment(128)
    for name in "ab":
        writer.add_tensor(name, np.full((3, 5), ord(name), np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    assert open_file(file).rows("b", 0, 3).unique().tolist() == [ord("b")]


def test_any_shorter_file_is_refused(small):
    data = small.read_bytes()
    for size in [*range(0, len(data) - 64, 7), len(data) - 33]:
        small.write_bytes(data[:size])
        assert codes(open_file, small) == ["checkpoint.unreadable"]
    small.write_bytes(data + bytes(64))
    assert codes(open_file, small) == ["checkpoint.unreadable"]


def test_any_damage_is_a_diagnostic(small):
    data = small.read_bytes()
    dice = random.Random(5)
    for _ in range(800):
        damaged = bytearray(data)
        for _ in range(dice.randint(1, 4)):
            damaged[dice.randrange(420)] = dice.choice([0, 1, 7, 127, 128, 255])
        small.write_bytes(damaged)
        try:
            found = open_file(small)
        except TopocError as problem:
            found = problem
        if isinstance(found, TopocError):
            assert {one.code for one in found.findings} <= DAMAGES
        else:
            assert all(one.stop <= len(data) for one in found.stored.values())


@pytest.mark.parametrize(
    ("at", "value", "says"),
    [
        (0, b"GGML", "does not start like"),
        (4, struct.pack("<I", 1), "version 1"),
        (4, struct.pack(">I", 3), "big-endian"),
        (8, struct.pack("<Q", 1 << 60), "tensors"),
        (16, struct.pack("<Q", 1 << 60), "keys"),
        (24, struct.pack("<Q", 1 << 63), "goes on"),
        (0, b"version https://git-lfs.github.com/spec/v1\n", "LFS"),
    ],
)
def test_lies_in_the_header_are_named(small, at, value, says):
    data = bytearray(small.read_bytes())
    data[at : at + len(value)] = value
    small.write_bytes(data)
    with pytest.raises(TopocError, match=says):
        open_file(small)


def test_names_and_bytes_belong_to_one_tensor(small):
    data = small.read_bytes()
    at = data.index(struct.pack("<Q", 1) + b"v")
    small.write_bytes(data[: at + 8] + b"m" + data[at + 9 :])
    assert codes(open_file, small) == ["checkpoint.duplicate"]
    offset = at + 9 + 4 + 8 + 4
    assert data[offset : offset + 8] == struct.pack("<Q", 256)
    small.write_bytes(data[:offset] + struct.pack("<Q", 32) + data[offset + 8 :])
    with pytest.raises(TopocError, match="starts inside `m`"):
        open_file(small)
    small.write_bytes(data.replace(b"large", b"words"))
    with pytest.raises(TopocError, match="`words` stands twice"):
        open_file(small)


def test_quantised_rows_bind_and_gains_lose_their_one(tmp_path):
    found = tiny(tmp_path)
    kinds = {"q": "Q8_0", "gate": "Q5_0", "embed": "F16"}
    weights = bind(open_file(write_gguf(tmp_path / "m.gguf", found, kinds)), found)
    from tiny_checkpoint import by_role

    values = by_role(found)
    for role in ("norm", "layers.1.q_norm", "layers.0.post_mlp_norm"):
        assert torch.allclose(weights.vector(role), values[role], atol=1e-6)
    assert torch.equal(weights.rows("layers.1.down", 0, 64), values["layers.1.down"])
    assert torch.allclose(weights.rows("layers.1.q", 0, 128), values["layers.1.q"], atol=0.03)
    assert torch.equal(weights.rows("embed", 3, 9), values["embed"][3:9].half().float())


def test_names_are_those_of_the_package(tmp_path):
    table = gguf.get_tensor_name_map(gguf.MODEL_ARCH.GEMMA3, 2)
    for one in tiny(tmp_path, tie_word_embeddings=False).tensors:
        prefix = "" if one.role == "head" else "model."
        name = table.get_name(prefix + one.name, try_suffixes=(".weight",))
        assert name == one.gguf, one.role


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("block_count", 3),
        ("embedding_length", 65),
        ("attention.head_count", 2),
        ("attention.head_count_kv", 4),
        ("attention.key_length", 16),
        ("attention.sliding_window", 9),
        ("attention.layer_norm_rms_epsilon", 1e-5),
        ("feed_forward_length", 128),
        ("rope.freq_base", 5e5),
        ("rope.freq_base_swa", 2e4),
        ("rope.scaling.factor", 8.0),
        ("final_logit_softcapping", 30.0),
    ],
)
def test_metadata_that_contradicts_the_config_is_named(tmp_path, field, value):
    found = tiny(tmp_path)
    reader = open_file(write_gguf(tmp_path / "m.gguf", found, fields={field: value}))
    with pytest.raises(TopocError) as caught:
        bind(reader, found)
    ((code, part),) = [(one.code, one.at.at.part) for one in caught.value.findings]
    assert (code, part) == ("model.contradicts-checkpoint", f"gemma3.{field}")


def test_leftovers_and_gaps_are_found(tmp_path):
    found = tiny(tmp_path)
    bias = [("blk.0.attn_q.bias", np.zeros(128, np.float32))]
    reader = open_file(write_gguf(tmp_path / "m.gguf", found, extra=bias))
    assert codes(bind, reader, found) == ["checkpoint.extra"]
    more = tiny(tmp_path, tie_word_embeddings=False)
    reader = open_file(write_gguf(tmp_path / "n.gguf", found))
    assert codes(bind, reader, more) == ["checkpoint.missing"]


@pytest.mark.real
def test_the_real_model_equals_the_package(real_gguf):
    from real_model import CONFIG

    from topoc.lowering import architecture

    found = architecture.read(CONFIG)
    weights = bind(open_file(real_gguf), found)
    theirs = {one.name: one for one in gguf.GGUFReader(real_gguf).tensors}
    for spec in found.tensors:
        rows = min(spec.shape[0], 512)
        one = theirs[spec.gguf]
        data = one.data[:rows] if len(spec.shape) > 1 else one.data
        wanted = torch.tensor(gguf.quants.dequantize(data, one.tensor_type))
        wanted = wanted - 1 if len(spec.shape) == 1 else wanted
        assert torch.equal(weights.rows(spec.role, 0, rows), wanted[:rows])
