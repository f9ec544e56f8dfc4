"""Safetensors: what is read is what was written, and nothing in a file is trusted."""

import json
import os
import random
import struct
from math import prod

import pytest
import torch
from safetensors.torch import save_file

from topoc.dsl.diagnostic import TopocError
from topoc.lowering.checkpoint.digest import digest
from topoc.lowering.checkpoint.open import open_checkpoint
from topoc.lowering.checkpoint.safetensors import BYTES, open_file


def refused(what, *args):
    with pytest.raises(TopocError) as caught:
        what(*args)
    return [(one.code, one.message) for one in caught.value.findings]


def raw(header, body=b"", size=None):
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text) if size is None else size) + text + body


def tensor(shape, start, dtype="F32"):
    end = start + prod(shape) * {"F32": 4, "BF16": 2, "F16": 2}[dtype]
    return {"dtype": dtype, "shape": shape, "data_offsets": [start, end]}


@pytest.fixture
def file(tmp_path):
    return tmp_path / "model.safetensors"


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_rows_are_what_was_written(file, dtype):
    matrix = torch.randn(13, 5).to(dtype)
    vector = torch.randn(7).to(dtype)
    save_file({"m": matrix, "v": vector, "odd": torch.zeros(1, dtype=torch.uint8)}, file)
    reader = open_file(file)
    assert reader.entries["m"].shape == (13, 5)
    for start, stop in ((0, 13), (3, 9), (12, 13)):
        found = reader.rows("m", start, stop)
        assert found.dtype == torch.float32
        assert torch.equal(found, matrix[start:stop].float())
        found.fill_(0)  # the caller owns it
    assert torch.equal(reader.rows("m", 0, 13), matrix.float())
    assert torch.equal(reader.rows("v", 2, 7), vector[2:7].float())


@pytest.mark.parametrize(
    ("damage", "says"),
    [
        (lambda data: data[:-10], "end at byte"),
        (lambda data: data[:20], "header claims"),
        (lambda _: b"", "empty"),
        (lambda data: data[:5], "header claims"),
        (lambda data: data + b"\0\0\0\0", "end at byte"),
        (lambda _: b"version https://git-lfs.github.com/spec/v1\noid sha256:1\n", "LFS"),
        (lambda _: b"\n<!DOCTYPE html><html><body>404", "web page"),
        (lambda data: b"PK\x03\x04" + data, "pickle"),
        (lambda data: b"\x80\x02" + data, "pickle"),
        (lambda _: raw(b"{" * 40), "not JSON"),
        (lambda _: raw([]), "not a JSON object"),
        (lambda _: raw({}, size=1 << 62), "header claims"),
        (lambda _: raw(b"[" * 200_000), "not JSON"),
    ],
)
def test_damage_is_named_before_anything_is_read(file, damage, says):
    save_file({"m": torch.randn(13, 5)}, file)
    file.write_bytes(damage(file.read_bytes()))
    ((code, message),) = refused(open_file, file)
    assert code == "checkpoint.unreadable"
    assert says in message


@pytest.mark.parametrize(
    ("header", "size"),
    [
        (b'{"a": %s, "a": %s}' % ((json.dumps(tensor([1], 0)).encode(),) * 2), 4),
        ({"a": tensor([2], 0), "b": tensor([2], 4)}, 12),  # overlap
        ({"a": tensor([1], 0), "b": tensor([1], 8)}, 12),  # gap
        ({"a": tensor([1], 4)}, 8),  # gap at the start
        ({"a": tensor([1], 1 << 40)}, 4),
        ({"a": tensor([1], 0) | {"shape": [2]}}, 4),
        ({"a": tensor([1], 0) | {"shape": [-1]}}, 4),
        ({"a": tensor([1], 0) | {"shape": [True]}}, 4),
        ({"a": tensor([1], 0) | {"shape": None}}, 4),
        ({"a": tensor([1], 0) | {"shape": [1] * 99}}, 4),
        ({"a": tensor([1], 0) | {"data_offsets": [0, 4, 8]}}, 4),
        ({"a": tensor([1], 0) | {"data_offsets": [0, "4"]}}, 4),
        ({"a": tensor([1], 0) | {"dtype": "F31"}}, 4),
        ({"a": tensor([1], 0) | {"dtype": ["F32"]}}, 4),
        ({"a": []}, 0),
        ({"a": tensor([1 << 40, 1 << 40], 0) | {"data_offsets": [0, 4]}}, 4),
    ],
)
def test_headers_that_lie_are_refused(file, header, size):
    file.write_bytes(raw(header, bytes(size)))
    assert [code for code, _ in refused(open_file, file)] == ["checkpoint.unreadable"]


def test_any_damage_is_a_diagnostic(file):
    save_file({"m": torch.randn(3, 5), "v": torch.randn(7)}, file)
    data = file.read_bytes()
    dice = random.Random(5)
    for _ in range(800):
        damaged = bytearray(data)
        for _ in range(dice.randint(1, 3)):
            damaged[dice.randrange(len(data) - 88)] = dice.randrange(256)
        file.write_bytes(damaged)
        try:
            found = open_file(file)
        except TopocError as problem:
            found = problem
        if isinstance(found, TopocError):
            assert [one.code for one in found.findings] == ["checkpoint.unreadable"]
        else:
            assert all(one.entry.dtype in BYTES for one in found.stored.values())


# --- shards ---------------------------------------------------------------------------------


@pytest.fixture
def shards(tmp_path):
    def one(parts, table=None, total=None):
        listed = {}
        for number, tensors in enumerate(parts, 1):
            name = f"model-{number}.safetensors"
            save_file(tensors, tmp_path / name)
            listed |= dict.fromkeys(tensors, name)
        size = sum(t.numel() * t.element_size() for part in parts for t in part.values())
        index = {
            "metadata": {"total_size": size if total is None else total},
            "weight_map": listed if table is None else table(listed),
        }
        (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
        return tmp_path

    return one


PARTS = ({"a": torch.randn(2, 2)}, {"b": torch.randn(3)}, {"c": torch.randn(1, 4)})


def test_shards_are_one_checkpoint(shards):
    reader = open_checkpoint(shards(PARTS))
    assert set(reader.entries) == {"a", "b", "c"}
    assert torch.equal(reader.rows("c", 0, 1), PARTS[2]["c"])
    assert len(reader.files) == 3
    assert reader.notices == ()


def test_three_kinds_of_absence_are_told_apart(shards, tmp_path):
    shards(PARTS)
    (tmp_path / "model-2.safetensors").unlink()
    ((code, message),) = refused(open_checkpoint, tmp_path)
    assert code == "checkpoint.missing-shard"
    assert "model-2.safetensors" in message
    shards(PARTS, lambda listed: listed | {"d": "model-1.safetensors"})
    ((code, message),) = refused(open_checkpoint, tmp_path)
    assert code == "checkpoint.missing"
    assert "lacks `d`" in message
    pairs = ({"a": torch.zeros(1), "b": torch.zeros(1)}, {"c": torch.zeros(1)})
    shards(pairs, lambda listed: listed | {"b": "model-2.safetensors"})
    ((code, message),) = refused(open_checkpoint, tmp_path)
    assert code == "checkpoint.missing"
    assert "shard `model-2.safetensors` lacks `b`" in message
    both = ({"a": torch.zeros(1), "e": torch.zeros(1)},)
    shards(both, lambda listed: {"a": listed["a"]})
    ((code, message),) = refused(open_checkpoint, tmp_path)
    assert code == "checkpoint.extra"
    assert "never lists" in message


def test_one_name_in_two_shards_is_refused(shards):
    folder = shards(
        ({"a": torch.zeros(2)}, {"a": torch.ones(2), "b": torch.ones(1)}),
        lambda _: {"a": "model-1.safetensors", "b": "model-2.safetensors"},
    )
    assert [code for code, _ in refused(open_checkpoint, folder)] == ["checkpoint.duplicate"]


@pytest.mark.parametrize(
    "name",
    ["../model-1.safetensors", "/etc/x.safetensors", "a/../../x.safetensors", "model-1.bin", "",
     "a\\b.safetensors", "c:x.safetensors", "./model-1.safetensors", "x\0.safetensors"],
)  # fmt: skip
def test_an_index_names_only_files_below_it(shards, name):
    folder = shards(PARTS, lambda listed: listed | {"a": name})
    assert [code for code, _ in refused(open_checkpoint, folder)] == ["checkpoint.unreadable"]


@pytest.mark.parametrize("table", [None, [], {"a": 1}, "x"])
def test_an_index_without_a_table_is_refused(shards, table):
    folder = shards(PARTS, lambda _: table)
    if table is None:
        (folder / "model.safetensors.index.json").write_text("{}")
    assert [code for code, _ in refused(open_checkpoint, folder)] == ["checkpoint.unreadable"]


def test_a_wrong_total_is_only_a_notice(shards):
    reader = open_checkpoint(shards(PARTS, total=5))
    assert len(reader.notices) == 1
    assert "5" in reader.notices[0]


def test_links_may_lead_anywhere(shards, tmp_path):
    shards(PARTS)
    blobs = tmp_path / "blobs"
    snapshot = tmp_path / "snapshots" / "main"
    blobs.mkdir()
    snapshot.mkdir(parents=True)
    for number, file in enumerate(sorted(tmp_path.glob("model*"))):
        file.rename(blobs / str(number))
        (snapshot / file.name).symlink_to(f"../../blobs/{number}")
    assert set(open_checkpoint(snapshot).entries) == {"a", "b", "c"}


# --- opening --------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["pytorch_model.bin", "x.pt", "x.pth", "x.ckpt", "x.pkl"])
def test_a_pickle_is_refused_by_name(tmp_path, name):
    (tmp_path / name).write_bytes(b"\x80\x02.")
    assert refused(open_checkpoint, tmp_path / name)[0][0] == "checkpoint.pickle"
    assert refused(open_checkpoint, tmp_path)[0][0] == "checkpoint.pickle"


def test_what_is_not_there_is_named(tmp_path):
    assert refused(open_checkpoint, tmp_path / "no")[0][0] == "checkpoint.missing-file"
    assert refused(open_checkpoint, tmp_path)[0][0] == "checkpoint.missing-file"
    assert refused(open_checkpoint, "random:x")[0][0] == "checkpoint.missing-file"
    (tmp_path / "w.onnx").write_bytes(b"x")
    assert refused(open_checkpoint, tmp_path / "w.onnx")[0][0] == "checkpoint.unknown-format"


def test_the_single_file_goes_before_the_shards(shards):
    folder = shards(PARTS)
    save_file({"z": torch.zeros(1)}, folder / "model.safetensors")
    assert set(open_checkpoint(folder).entries) == {"z"}


def test_a_digest_follows_the_bytes(file):
    import hashlib

    save_file({"a": torch.zeros(4)}, file)
    first = digest(open_file(file))
    assert first == hashlib.sha256(file.read_bytes()).hexdigest()
    save_file({"a": torch.ones(4)}, file)
    os.utime(file, ns=(1, 1))
    assert digest(open_file(file)) != first
