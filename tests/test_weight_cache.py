"""Cached weights: made once, whole or not there, and noticed when they are not what they were."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch

from topoc.lowering import kept as keeping
from topoc.lowering.compress import cache as caching
from topoc.lowering.compress.cache import Cache, key
from topoc.lowering.compress.compress import compress
from topoc.lowering.compress.importance import Importance
from topoc.lowering.compress.recipe import Linear, Palettize, Prune
from topoc.lowering.compress.source import Held, content
from topoc.lowering.kept import folder

HOW = Palettize(4, 16)


def held(seed, scale=0.02):
    values = np.random.default_rng(seed).standard_normal((32, 64)).astype(np.float32)
    return Held(f"w{seed}", torch.from_numpy(values * scale))


@pytest.fixture
def kept(tmp_path):
    return Cache(tmp_path / "weights")


def put(kept, seed, how=HOW):
    source = held(seed)
    name, made = key(content(source), how), compress(source, how)
    kept.put(name, made, source.name)
    return name, made


@pytest.mark.parametrize("how", [HOW, Linear(4, "block", 32), Prune(2, 4, HOW), Palettize(1)])
def test_what_is_put_comes_back(kept, how):
    name, made = put(kept, 0, how)
    found = kept.get(name, how)
    assert found.recipe == how
    assert found.rows == made.rows
    for part, one in made.parts.items():
        assert (found.parts[part].dtype, found.parts[part].shape) == (one.dtype, one.shape)
        assert found.parts[part].data.tobytes() == one.data.tobytes()


def test_what_was_not_put_is_not_there(kept):
    assert kept.get("0" * 64, HOW) is None
    assert kept.entries() == []
    assert kept.damaged == []


def test_a_key_tells_all_that_decides(monkeypatch):
    one = content(held(0))
    plain = key(one, HOW)
    assert plain == key(content(Held("other", held(0).values.half())), HOW)
    others = [
        key(content(held(1)), HOW),
        key(content(Held("w", held(0).values.view(64, 32))), HOW),
        key(one, Palettize(4, 32)),
        key(one, Palettize(4, 16, "int8")),
        key(one, HOW, Importance(np.ones(64))),
        key(one, HOW, Importance(None, np.ones(64))),
        key(one, HOW, more="products"),
    ]
    monkeypatch.setattr(caching, "METHOD", ("another",))
    others.append(key(one, HOW))
    assert len({plain, *others}) == len(others) + 1


def test_any_flipped_byte_is_noticed(kept):
    name, made = put(kept, 0)
    path = kept.root / f"{name}.weight"
    whole = path.read_bytes()
    for at in (0, 20, 48, 60, 200, len(whole) // 2, len(whole) - 1):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 4]) + whole[at + 1 :])
        assert kept.get(name, HOW) is None, at
        assert not path.exists()
    assert kept.damaged == [name] * 7
    kept.put(name, made, "w0")
    assert path.read_bytes() == whole
    assert kept.get(name, HOW) is not None


@pytest.mark.parametrize("size", [0, 10, 55, 300])
def test_a_short_file_is_noticed(kept, size):
    name, _ = put(kept, 0)
    path = kept.root / f"{name}.weight"
    os.truncate(path, size)
    assert kept.entries()[0].recipe == "damaged" or size == 300
    assert kept.get(name, HOW) is None


def test_entries_are_told_with_the_last_used_first(kept):
    names = [put(kept, seed)[0] for seed in range(3)]
    for age, name in enumerate(names):
        os.utime(kept.root / f"{name}.weight", (1e9 + age, 1e9 + age))
    kept.get(names[0], HOW)
    assert [one.key for one in kept.entries()] == [names[0], names[2], names[1]]
    first = kept.entries()[0]
    assert (first.label, first.recipe) == ("w0", repr(HOW))
    assert first.bytes == (kept.root / f"{names[0]}.weight").stat().st_size


def test_what_was_used_longest_ago_goes_first(kept):
    names = [put(kept, seed)[0] for seed in range(4)]
    for age, name in enumerate(names):
        os.utime(kept.root / f"{name}.weight", (1e9 + age, 1e9 + age))
    size = kept.entries()[0].bytes
    assert [one.key for one in kept.prune(2 * size)] == [names[1], names[0]]
    assert [one.key for one in kept.entries()] == [names[3], names[2]]
    kept.limit = 2 * size
    last, _ = put(kept, 9)
    assert [one.key for one in kept.entries()] == [last, names[3]]


def test_an_entry_that_was_pruned_can_still_be_read_by_who_has_it(kept):
    name, made = put(kept, 0)
    found = kept.get(name, HOW)
    kept.prune(0)
    assert found.parts["indices"].data.tobytes() == made.parts["indices"].data.tobytes()


def test_abandoned_files_are_removed_and_new_ones_left(kept):
    put(kept, 0)
    for name, age in ((".a.part", 2 * keeping.ABANDONED), (".b.part", 5)):
        (kept.root / name).write_bytes(b"x")
        os.utime(kept.root / name, (time.time() - age,) * 2)
    kept.prune(1 << 30)
    assert [one.name for one in kept.root.glob(".*.part")] == [".b.part"]


def test_a_full_disk_leaves_nothing_behind(kept, monkeypatch):
    true = keeping._write

    def full(*arguments):
        true(*arguments)
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(keeping, "_write", full)
    with pytest.raises(OSError, match="No space"):
        put(kept, 0)
    assert list(kept.root.iterdir()) == []


WRITE = """
import sys
from pathlib import Path
sys.path.insert(0, sys.argv[2])
from test_weight_cache import *
kept = Cache(Path(sys.argv[1]), limit=4 * 3000)
print("begun", flush=True)
for turn in range(int(sys.argv[3])):
    for seed in range(8):
        name = key(content(held(seed)), HOW)
        if kept.get(name, HOW) is None:
            put(kept, seed)
assert kept.damaged == []
"""


def writer(root, turns):
    command = [sys.executable, "-c", WRITE, root, Path(__file__).parent, str(turns)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def test_processes_that_write_and_prune_together_see_whole_entries(tmp_path):
    with writer(tmp_path, 6) as one, writer(tmp_path, 6) as other:
        assert (one.wait(), other.wait()) == (0, 0)
    kept = Cache(tmp_path)
    assert kept.entries()
    for one in kept.entries():
        assert kept.get(one.key, HOW) is not None


def test_a_killed_writer_leaves_whole_entries(tmp_path):
    with writer(tmp_path, 10_000) as process:
        process.stdout.readline()
        while not list(tmp_path.glob("*.weight")):
            assert process.poll() is None
            time.sleep(0.01)
        process.send_signal(signal.SIGKILL)
    kept = Cache(tmp_path)
    assert all(kept.get(one.key, HOW) is not None for one in kept.entries())
    assert kept.damaged == []


def test_the_folder_is_the_users(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert folder() == tmp_path / "topoc" / "weights"
    assert Cache().root == folder()
