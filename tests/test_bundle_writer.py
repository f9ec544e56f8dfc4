"""A bundle on disk is the old one or the new one, whatever happens while it is written."""

import errno
import os
import shutil

import attrs
import pytest
from tiny_bundle import tiny_manifest, write_bundle, write_files

from topoc.dsl.diagnostic import TopocError
from topoc.lowering.bundle import writer as bundle_writer
from topoc.lowering.bundle.reader import BundleWriter, open_bundle

OLD = attrs.evolve(tiny_manifest(), build="old")
NEW = attrs.evolve(tiny_manifest("blend"), build="new")
STRIDE = 3  # the kinds of failure begin one call apart, so that together they meet every call
CALLS = ("mkdir", "open", "fsync", "rename", "unlink", "rmdir")


def beside(path):
    return sorted(one.name for one in path.parent.iterdir() if one != path)


def standing(path):
    """The build that stands whole at a path, or None."""
    return open_bundle(path).manifest.build if path.exists() else None


@pytest.fixture(autouse=True)
def quick_disk(monkeypatch):
    """What fsync does can't be seen here, only that it is called, and its time can."""
    monkeypatch.setattr(os, "fsync", lambda _: None)


@pytest.fixture(params=["exchange", "two renames"])
def swap(request, monkeypatch):
    """Both ways to swap: in one step, and on file systems that can't."""
    if request.param == "two renames":
        monkeypatch.setattr(bundle_writer, "exchange", lambda *_: False)
    return request.param


@pytest.fixture(params=[True, False], ids=["over an old one", "fresh"])
def path(request, tmp_path):
    place = tmp_path / "out" / "b"
    if request.param:
        write_bundle(place, OLD)
    return place


def test_a_bundle_takes_the_place_of_the_old_one(swap, path):
    write_bundle(path, NEW)
    assert standing(path) == "new"
    assert beside(path) == []


def test_seal_lists_every_file_and_package(tmp_path):
    manifest = write_bundle(tmp_path / "b", NEW)
    assert [one.path for one in manifest.files] == [
        "embed.bin",
        "embed.scale.bin",
        "far.mlpackage",
        "far.npy",
        "near.mlpackage",
        "near.npy",
    ]
    assert open_bundle(tmp_path / "b").manifest == manifest


class Failing:
    """Makes the k-th call to any of the system's functions fail."""

    def __init__(self, monkeypatch, at, how):
        self.left, self.hit = at, False
        for name in CALLS:
            monkeypatch.setattr(os, name, self.wrapped(getattr(os, name), how))
        plain = bundle_writer.exchange
        monkeypatch.setattr(bundle_writer, "exchange", self.wrapped(plain, how))

    def wrapped(self, function, how):
        def call(*arguments, **options):
            self.left -= 1
            if self.left == 0:
                self.hit = True
                how()
            return function(*arguments, **options)

        return call


def disk_full():
    raise OSError(errno.ENOSPC, "No space left on device")


def denied():
    raise PermissionError(errno.EACCES, "Permission denied")


def interrupted():
    raise KeyboardInterrupt


HOW = {disk_full: "bundle.disk-full", denied: "bundle.cannot-write", interrupted: None}


@pytest.mark.parametrize("how", HOW, ids=lambda one: one.__name__)
def test_a_failure_at_any_call_leaves_the_old_or_the_new(swap, tmp_path, how):
    failures = 0
    for at in range(1 + list(HOW).index(how), 200, STRIDE):
        place = tmp_path / str(at) / "b"
        write_bundle(place, OLD)
        with pytest.MonkeyPatch.context() as patch:
            failing = Failing(patch, at, how)
            try:
                write_bundle(place, NEW)
            except (TopocError, KeyboardInterrupt, OSError) as found:
                failures += 1
                told = [one.code for one in getattr(found, "findings", ())]
                outside = isinstance(found, OSError)  # the body's own file work
                assert outside or told == ([HOW[how]] if HOW[how] else [])
                assert not (outside and how is disk_full)
        assert standing(place) in {"old", "new"}
        write_bundle(place, NEW)
        assert standing(place) == "new"
        assert beside(place) == []
        if not failing.hit:
            break
    assert failures > 30 // STRIDE
    assert not failing.hit


@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
@pytest.mark.parametrize("fresh", [False, True], ids=["over an old one", "fresh"])
def test_a_kill_at_any_call_leaves_the_old_or_the_new(swap, tmp_path, fresh):
    for at in range(1 + fresh, 200, STRIDE):
        place = tmp_path / str(at) / "b"
        if not fresh:
            write_bundle(place, OLD)
        child = os.fork()
        if not child:
            with pytest.MonkeyPatch.context() as patch:
                Failing(patch, at, lambda: os._exit(9))
                write_bundle(place, NEW)
            os._exit(0)
        killed = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 9
        if swap == "exchange":
            assert standing(place) in ({None, "new"} if fresh else {"old", "new"})
        with BundleWriter(place) as writer:  # what the next compile does first
            assert standing(place) in ({None, "new"} if fresh else {"old", "new"})
            write_files(writer.directory, NEW)
            writer.seal(NEW)
        assert standing(place) == "new"
        assert beside(place) == []
        if not killed:
            break
    assert at > 30
    assert not killed


@pytest.mark.parametrize("failure", [ValueError, KeyboardInterrupt])
def test_a_body_that_fails_leaves_no_trace(path, failure):
    before = standing(path)
    with pytest.raises(failure), BundleWriter(path) as writer:
        write_files(writer.directory, NEW)
        raise failure
    assert standing(path) == before
    assert beside(path) == []


def test_a_full_disk_in_the_body_is_told(path):
    before = standing(path)
    with pytest.raises(TopocError, match=r"bundle\.disk-full"), BundleWriter(path) as writer:
        (writer.directory / "half").write_bytes(b"x")
        disk_full()
    assert standing(path) == before
    assert beside(path) == []


def test_a_body_that_forgets_to_seal_replaces_nothing(path):
    before = standing(path)
    with pytest.raises(TopocError, match=r"bundle\.not-sealed"), BundleWriter(path):
        pass
    assert standing(path) == before


def test_two_writers_exclude_each_other(path):
    with BundleWriter(path) as writer:
        with pytest.raises(TopocError, match=r"bundle\.locked"), BundleWriter(path):
            pytest.fail("the second writer came in")
        write_files(writer.directory, NEW)
        writer.seal(NEW)
    assert standing(path) == "new"
    write_bundle(path, OLD)


def test_a_lock_file_without_a_holder_is_no_obstacle(path):
    path.parent.mkdir(exist_ok=True)
    (path.parent / f".{path.name}.topoc-lock").touch()
    write_bundle(path, NEW)
    assert beside(path) == []


def test_a_folder_of_something_else_is_left_alone(tmp_path):
    for name, text in (("notes.txt", "x"), ("manifest.json", "{}"), ("manifest.json", "[")):
        place = tmp_path / name / text.strip("[{}")
        shutil.rmtree(place, ignore_errors=True)
        place.mkdir(parents=True)
        (place / name).write_text(text)
        with pytest.raises(TopocError, match=r"bundle\.not-a-bundle"), BundleWriter(place):
            pytest.fail("came in")
        assert (place / name).read_text() == text
    file = tmp_path / "file"
    file.write_text("x")
    with pytest.raises(TopocError, match=r"bundle\.not-a-bundle"), BundleWriter(file):
        pytest.fail("came in")
    assert file.read_text() == "x"


def test_an_empty_folder_and_an_older_bundle_may_be_replaced(tmp_path):
    place = tmp_path / "b"
    place.mkdir()
    write_bundle(place, OLD)
    manifest = place / "manifest.json"
    manifest.write_text(manifest.read_text().replace("topoc.bundle/1", "topoc.bundle/0"))
    write_bundle(place, NEW)
    assert standing(place) == "new"


def test_a_link_to_a_bundle_stays_a_link(tmp_path):
    write_bundle(tmp_path / "real", OLD)
    (tmp_path / "link").symlink_to(tmp_path / "real")
    write_bundle(tmp_path / "link", NEW)
    assert (tmp_path / "link").is_symlink()
    assert standing(tmp_path / "real") == "new"


def test_the_same_bundle_has_the_same_bytes(tmp_path):
    for name in ("one", "two"):
        write_bundle(tmp_path / name, NEW)
    assert (tmp_path / "one/manifest.json").read_bytes() == (
        tmp_path / "two/manifest.json"
    ).read_bytes()


def test_what_cannot_be_written_is_told(tmp_path):
    (tmp_path / "file").write_text("x")
    with (
        pytest.raises(TopocError, match=r"bundle\.cannot-write"),
        BundleWriter(tmp_path / "file/b"),
    ):
        pytest.fail("came in")
