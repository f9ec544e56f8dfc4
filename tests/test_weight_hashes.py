"""Hashes of weight files are kept: a file is hashed when it is new or was touched."""

import os
from hashlib import sha256

import numpy as np
import pytest
from safetensors.numpy import save_file

from topoc.lowering.checkpoint import digest as hashing
from topoc.lowering.checkpoint.digest import digest, known_digest
from topoc.lowering.checkpoint.open import open_checkpoint
from topoc.lowering.checkpoint.safetensors import open_file
from topoc.lowering.kept import Kept

LATER = 10_000_000_000  # nanoseconds


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "model.safetensors"
    save_file({"w": np.arange(6, dtype=np.float32)}, path)
    return path


@pytest.fixture
def kept(tmp_path):
    return Kept(tmp_path / "cache")


@pytest.fixture
def hashed(monkeypatch):
    """The files that were read, in order, by processes that remember nothing."""
    read, real = [], hashing._hashed.__wrapped__
    monkeypatch.setattr(hashing, "_hashed", lambda one: read.append(one.path.name) or real(one))
    return read


@pytest.fixture
def later(monkeypatch):
    """A clock by which files have long been as they are."""
    now = hashing.time_ns
    monkeypatch.setattr(hashing, "time_ns", lambda: now() + LATER)


def true_hash(file):
    return sha256(file.read_bytes()).hexdigest()


@pytest.mark.usefixtures("later")
def test_a_file_is_hashed_once(file, kept, hashed):
    reader = open_file(file)
    assert known_digest(reader, kept) is None
    assert digest(reader, kept) == digest(reader, kept) == true_hash(file)
    assert known_digest(reader, Kept(kept.root)) == true_hash(file)
    assert hashed == [file.name]
    (entry,) = kept.entries()
    assert (entry.label, entry.recipe) == (file.name, "hash of a weight file")


@pytest.mark.usefixtures("later")
def test_without_a_cache_it_is_hashed_each_time(file, hashed):
    assert digest(open_file(file)) == digest(open_file(file)) == true_hash(file)
    assert hashed == [file.name] * 2


@pytest.mark.usefixtures("later")
@pytest.mark.parametrize("moved", [False, True])
def test_a_changed_file_is_hashed_again_though_its_size_and_time_are_the_same(
    file, kept, hashed, moved
):
    digest(open_file(file), kept)
    before = file.stat()
    changed = bytearray(file.read_bytes())
    changed[-1] ^= 1
    written = file.with_name("other") if moved else file
    written.write_bytes(changed)
    os.utime(written, ns=(before.st_atime_ns, before.st_mtime_ns))
    written.replace(file)
    assert file.stat().st_mtime_ns == before.st_mtime_ns
    assert known_digest(open_file(file), kept) is None
    assert digest(open_file(file), kept) == true_hash(file)
    assert len(hashed) == 2


def test_a_file_that_was_just_written_is_not_kept(file, kept, hashed):
    """It may be written again within one tick of the disk's clock."""
    assert digest(open_file(file), kept) == digest(open_file(file), kept) == true_hash(file)
    assert len(hashed) == 2
    assert known_digest(open_file(file), kept) is None


@pytest.mark.usefixtures("later")
def test_a_file_that_changes_while_it_is_hashed_is_not_kept(file, kept, monkeypatch):
    real = hashing._hashed.__wrapped__

    def touching(state):
        found = real(state)
        file.write_bytes(file.read_bytes())
        return found

    monkeypatch.setattr(hashing, "_hashed", touching)
    digest(open_file(file), kept)
    assert not kept.entries()


@pytest.mark.usefixtures("later")
def test_several_files_are_known_when_all_are(tmp_path, kept, hashed):
    names = ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"]
    for name in names:
        save_file({name[:11]: np.ones(3, np.float32)}, tmp_path / name)
    index = {name[:11]: name for name in names}
    (tmp_path / "model.safetensors.index.json").write_text(
        '{"weight_map": ' + str(index).replace("'", '"') + "}"
    )
    reader = open_checkpoint(tmp_path)
    whole = digest(reader, kept)
    os.utime(tmp_path / names[0])
    assert known_digest(reader, kept) is None
    assert digest(reader, kept) == whole == digest(reader)
    assert hashed[:3] == [*names, names[0]]
