"""Files that are hashed, and brought to the disk, while they are written."""

import errno
import os
import threading
import time
from hashlib import sha256

import pytest
from attrs import evolve
from test_kept import OTHERS, request, small  # noqa: F401 — a fixture

from topoc.lowering import hashed
from topoc.lowering.bundle import digest as digests
from topoc.lowering.bundle.reader import open_bundle
from topoc.lowering.compiler import compile_bundle
from topoc.lowering.compress.cache import Cache
from topoc.lowering.hashed import HashedFile

PIECE = 64


@pytest.fixture(autouse=True)
def little(monkeypatch):
    """Pieces and syncs come often."""
    monkeypatch.setattr(hashed, "PIECE", PIECE)
    monkeypatch.setattr(hashed, "SYNCED", 4 * PIECE)


@pytest.fixture
def path(tmp_path):
    """Of a file; when all is done, no thread is left over."""
    before = threading.active_count()
    yield tmp_path / "file"
    assert threading.active_count() == before


@pytest.mark.parametrize(
    "sizes",
    [
        [],
        [0],
        [1],
        [PIECE - 1],
        [PIECE],
        [PIECE + 1],
        [3, 5, PIECE, 7],
        [10 * PIECE + 9],
        [1] * 999,
    ],
)
def test_the_digest_is_that_of_the_file(path, sizes):
    with HashedFile(path) as file:
        for size in sizes:
            file.write(os.urandom(size))
        assert file.tell() == sum(sizes)
    assert path.stat().st_size == sum(sizes)
    assert file.digest == sha256(path.read_bytes()).hexdigest()


def test_what_was_flushed_can_be_read(path):
    with HashedFile(path) as file:
        file.write(b"some")
        file.flush()
        assert path.read_bytes() == b"some"
        file.write(memoryview(b"more"))
    assert path.read_bytes() == b"somemore"


def test_the_disk_is_asked_while_the_file_is_written(path, monkeypatch):
    asked = []
    monkeypatch.setattr(os, "fsync", lambda handle: asked.append(os.fstat(handle).st_size))
    with HashedFile(path) as file:
        for _ in range(40):
            file.write(bytes(PIECE))
            time.sleep(0.001)
        assert len(asked) > 1
    assert asked == sorted(asked)


@pytest.mark.parametrize("writes", [4, 40])
def test_what_the_disk_refuses_is_told(path, monkeypatch, writes):
    """By the last call at the latest."""

    def refused(_):
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(os, "fsync", refused)
    with pytest.raises(OSError, match="Input/output"), HashedFile(path) as file:
        for _ in range(writes):
            file.write(bytes(PIECE))


class Slow:
    """A hash that waits for a word."""

    def __init__(self):
        self.go = threading.Event()

    def update(self, _):
        self.go.wait(10)


def test_no_more_waits_to_be_hashed_than_was_said(path, monkeypatch):
    slow = Slow()
    monkeypatch.setattr(hashed, "AHEAD", 2)
    with HashedFile(path) as file:
        file._hash.sum, slow.hexdigest = slow, lambda: "hash"
        threading.Timer(0.2, slow.go.set).start()
        for _ in range(10):
            file.write(bytes(PIECE))
            assert len(file._hash.given) <= 2
        assert slow.go.is_set()


def test_a_failure_ends_the_threads_and_leaves_no_digest(path):
    with pytest.raises(KeyboardInterrupt), HashedFile(path) as file:
        file.write(bytes(20 * PIECE))
        raise KeyboardInterrupt
    assert file.digest == ""
    assert file._file.closed


def test_no_weight_file_is_read_back(small, tmp_path, monkeypatch):  # noqa: F811
    """Workers tell what they hashed; that it is right is seen when the bundle is opened."""
    read, plain = [], digests._file_digest

    def file_digest(path, known):
        if path not in known:
            read.append(path.name)
        return plain(path, known)

    monkeypatch.setattr(digests, "_file_digest", file_digest)
    asked = request(small, "random:3", Cache(tmp_path / "cache"), chunks=OTHERS)
    for jobs in (1, 2):
        compile_bundle(evolve(asked, jobs=jobs), tmp_path / "b")
        assert read.count("model.mlmodel") == 2
        assert "weight.bin" not in read
        open_bundle(tmp_path / "b")
        assert read.count("weight.bin") == 2
        read.clear()
