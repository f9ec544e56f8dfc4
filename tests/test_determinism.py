"""The same inputs give the same bytes, and whatever ends a compile leaves the old or the new."""

import errno
import io
import os
import random
import select
import shutil
import signal
import stat
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from tiny_checkpoint import by_name

from topoc.dsl.cli import main
from topoc.lowering import architecture
from topoc.lowering.bundle import writer as bundle_writer
from topoc.lowering.bundle.reader import open_bundle
from topoc.lowering.features.storage import AngleFiles
from topoc.lowering.hashed import HashedFile
from topoc.lowering.tables import _write_angles

EXAMPLE = Path(__file__).parent.parent / "examples" / "conformance"
CHUNKS = "chunk first  = L0\n  chunk second = L1 + norm + head(argmax)"
WHOLE = "chunk whole = L0-1 + norm + head(argmax)"
NEW = ("one.topo", "--function", "decode")  # the bundle that takes the old one's place
WEIGHTS = ("random:1", "model.safetensors")
FORKS = pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")

# What a process does: it compiles of one checkpoint after the other.
SCRIPT = """
import os, sys
os.umask(int(sys.argv[1], 8))
import torch
torch.set_num_threads(int(sys.argv[2]))
from topoc.dsl.cli import main
for weights in sys.argv[4].split(","):
    target = os.path.join(sys.argv[3], weights.partition(":")[0])
    main(["compile", "tiny.topo", "--weights", weights, "-o", target, *sys.argv[5:]],
         standalone_mode=False)
"""


def features():
    """What numpy chooses its loops by on this processor and can be told to leave alone."""
    from numpy._core import _multiarray_umath as core

    return [one for one in core.__cpu_dispatch__ if core.__cpu_features__.get(one)]


# Each process differs from the first in many ways at once: one that matters makes a difference.
PLAIN = {"PYTHONHASHSEED": "random", "TZ": "UTC", "LC_ALL": "C.utf8", "OMP_NUM_THREADS": "1"}
OTHERS = {
    "another hash seed, zone and locale, two threads, no vectors": {
        "environment": {
            "PYTHONHASHSEED": "0",
            "PYTHONUTF8": "0",
            "TZ": "Asia/Tokyo",
            "LC_ALL": "C",
            "OMP_NUM_THREADS": "2",
            "NPY_DISABLE_CPU_FEATURES": " ".join(features()),
        },
        "umask": "077",
        "threads": "2",
        "options": (),
    },
    "two jobs, a third hash seed, a far zone, some vectors": {
        "environment": {
            "PYTHONHASHSEED": "1",
            "TZ": "Pacific/Marquesas",
            "OMP_NUM_THREADS": "1",
            "NPY_DISABLE_CPU_FEATURES": " ".join(features()[1:]),
        },
        "umask": "002",
        "threads": "1",
        "options": ("--jobs", "2"),
        "weights": WEIGHTS[1:],  # workers take as long as the rest to start
    },
}


def sources(folder):
    """The topology, one of a single chunk, their config and a checkpoint, in a new folder."""
    from safetensors.torch import save_file

    folder.mkdir(parents=True)
    for name in ("config.json", "tiny.topo"):
        shutil.copy(EXAMPLE / name, folder)
    text = (folder / "tiny.topo").read_text()
    assert CHUNKS in text
    (folder / "one.topo").write_text(text.replace(CHUNKS, WHOLE))
    tensors = {name: value.half() for name, value in by_name(architecture.read(folder)).items()}
    save_file(tensors, folder / "model.safetensors")
    return folder


def compiled_in(
    folder, target, *, environment, weights=WEIGHTS, umask="022", threads="1", options=()
):
    """A bundle of each checkpoint, out of a process of their own that finds nothing kept."""
    words = (umask, threads, str(target), ",".join(weights), *options)
    code = [sys.executable, "-c", SCRIPT, *words]
    kept = {k: v for k, v in os.environ.items() if k not in {*PLAIN, "NPY_DISABLE_CPU_FEATURES"}}
    kept["XDG_CACHE_HOME"] = f"{target}.cache"
    done = subprocess.run(
        code, cwd=folder, env=kept | environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return target


def files(folder):
    """Every file with its bytes."""
    return {
        one.relative_to(folder).as_posix(): one.read_bytes()
        for one in folder.rglob("*")
        if one.is_file()
    }


def modes(folder):
    """The modes of all that is in a bundle, but not its own."""
    return {
        one.relative_to(folder).as_posix(): stat.S_IMODE(one.stat().st_mode)
        for one in folder.rglob("*")
    }


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    return sources(tmp_path_factory.mktemp("one") / "source")


@pytest.fixture(scope="module")
def first(checkpoint, tmp_path_factory):
    """The bundles that all others are held against."""
    return compiled_in(checkpoint, tmp_path_factory.mktemp("target"), environment=PLAIN)


@pytest.mark.parametrize("name", OTHERS)
def test_another_process_in_another_folder_writes_the_same_bytes(first, tmp_path, name):
    folder = sources(tmp_path / "elsewhere" / "deeper")
    other = compiled_in(folder, tmp_path / "far" / "off", **OTHERS[name])
    for weights in OTHERS[name].get("weights", WEIGHTS):
        one, two = (where / weights.partition(":")[0] for where in (first, other))
        assert len(files(one)) > 10
        assert files(two) == files(one)
        assert modes(two) == modes(one)


def test_modes_are_the_same_whatever_the_umask_and_the_folder_follows_it(tmp_path, monkeypatch):
    monkeypatch.chdir(sources(tmp_path / "source"))
    before = os.umask(0o077)
    try:
        assert compiled("b") == 0
    finally:
        os.umask(before)
    found = {stat.S_ISDIR(one.stat().st_mode): set() for one in Path("b").rglob("*")}
    for one in Path("b").rglob("*"):
        found[one.is_dir()].add(stat.S_IMODE(one.stat().st_mode))
    assert found == {True: {0o755}, False: {0o644}}
    assert stat.S_IMODE(Path("b").stat().st_mode) == 0o700


def test_a_bundle_tells_nothing_of_where_and_when_it_was_made(first, checkpoint):
    words = (os.fsencode(checkpoint), os.fsencode(first), os.uname().nodename.encode(), b"/tmp")
    for name, content in files(first).items():
        assert not [one for one in words if one and one in content], name


# --- in this process ------------------------------------------------------------------------


def compiled(target, topology="tiny.topo", *options, weights="random:1"):
    """Compile in this process; the exit status. A traceback fails the test."""
    arguments = ["compile", topology, "--weights", weights, "-o", str(target), *options]
    done = CliRunner().invoke(main, arguments)
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise done.exception
    compiled.said = done.stderr
    return done.exit_code


def leftovers(target):
    return sorted(one.name for one in target.parent.iterdir() if one != target)


@pytest.fixture(scope="module")
def builds(checkpoint, tmp_path_factory):
    """The bundles that take each other's place, whole."""
    place = tmp_path_factory.mktemp("builds")
    here = Path.cwd()
    os.chdir(checkpoint)
    try:
        assert compiled(place / "old", weights="model.safetensors") == 0
        assert compiled(place / "new", *NEW) == 0
    finally:
        os.chdir(here)
    return place


@pytest.fixture
def place(builds, checkpoint, tmp_path, monkeypatch):
    """Where a bundle stands that a compile of `new` will replace."""
    monkeypatch.chdir(checkpoint)
    target = tmp_path / "out" / "b"
    shutil.copytree(builds / "old", target)
    return target


def stands(target, builds):
    """Which of the bundles stands whole at a place."""
    if not target.exists():
        return None
    open_bundle(target)
    found = files(target)
    return next((name for name in ("old", "new") if files(builds / name) == found), "neither")


def forked(work):
    """A process that does this work and ends with its exit status."""
    child = os.fork()
    if not child:
        status = 99
        try:
            status = work()
        finally:
            os._exit(status)
    return child


def ended(child):
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


@FORKS
@pytest.mark.parametrize("swap", ["exchange", "two renames"])
def test_a_kill_at_a_random_moment_leaves_the_old_or_the_new(place, builds, monkeypatch, swap):
    if swap == "two renames":
        monkeypatch.setattr(bundle_writer, "exchange", lambda *_: False)
    begun = time.monotonic()
    assert ended(forked(lambda: compiled(place, *NEW))) == 0
    lasts = time.monotonic() - begun
    rng, seen = random.Random(7), set()
    for nth in range(6):
        shutil.rmtree(place)
        shutil.copytree(builds / "old", place)
        child = forked(lambda: compiled(place, *NEW))
        time.sleep(lasts * (nth + rng.random()) / 6)
        os.kill(child, signal.SIGKILL)
        seen.add(ended(child))
        if swap == "exchange":
            assert stands(place, builds) in {"old", "new"}
        assert compiled(place, *NEW) == 0
        assert stands(place, builds) == "new"
        assert leftovers(place) == []
    assert -signal.SIGKILL in seen


class Faults:
    """Lets the k-th call that changes the disk fail, wherever in a compile it is made."""

    CALLS = ("mkdir", "fsync", "rename", "unlink", "rmdir", "open", "fchmod", "link")
    BUFFER = 4096  # half of what is usual, so that there are more writes to fail

    def __init__(self, patch, target, at, number):
        self.target, self.left, self.number, self.hit = str(target.parent), at, number, None
        for name in self.CALLS:
            patch.setattr(os, name, self.counting(name, getattr(os, name)))
        swap = self.counting("exchange", bundle_writer.exchange)
        patch.setattr(bundle_writer, "exchange", swap)
        plain = io.open
        patch.setattr(io, "open", lambda *a, **o: self.opened(plain, *a, **o))
        patch.setattr("builtins.open", io.open)

    def tick(self, name):
        self.left -= 1
        if self.left == 0:
            self.hit = name
            raise OSError(self.number, os.strerror(self.number))

    def counting(self, name, function):
        def call(*arguments, **options):
            self.tick(name)
            return function(*arguments, **options)

        return call

    def opened(self, plain, file, mode="r", *rest, **options):
        """A file of ours under a raw one that counts its writes, however they are buffered."""
        ours = not isinstance(file, int) and os.fspath(file).startswith(self.target)
        if not ours or not set(mode) & set("wax+"):
            return plain(file, mode, *rest, **options)
        raw = _Raw(file, mode.replace("b", "").replace("t", ""))
        raw.faults = self
        kind = io.BufferedRandom if "+" in mode else io.BufferedWriter
        buffered = kind(raw, self.BUFFER)
        if "b" in mode:
            return buffered
        return io.TextIOWrapper(buffered, encoding="utf-8", newline=options.get("newline"))


class _Raw(io.FileIO):
    faults = None

    def write(self, data):
        self.faults.tick("write")
        return super().write(data)


@pytest.mark.parametrize("fresh", [False, True], ids=["over an old one", "fresh"])
def test_a_failure_at_any_call_of_a_compile_is_told(place, builds, quick, monkeypatch, fresh):
    """Over an old bundle at every call; where there is none, at each fifth."""
    names = set()
    for at in range(1, 400, 5 if fresh else 1):
        number = (errno.ENOSPC, errno.EIO)[at // 2 % 2]  # an `open` and its `fsync` meet both
        if fresh and place.exists():
            shutil.rmtree(place)
        with pytest.MonkeyPatch.context() as patch:
            faults = Faults(patch, place, at, number)
            status = compiled(place, *NEW)
        if faults.hit is None:
            break
        names.add((faults.hit, number))
        standing = stands(place, builds)
        if status == 0:  # that the folder around it is there already is no failure
            assert (faults.hit, standing) == ("mkdir", "new")
            continue
        assert status == 2, faults.hit
        wanted = "bundle.disk-full" if number == errno.ENOSPC else "bundle.cannot-write"
        assert wanted in compiled.said, (at, faults.hit, compiled.said)
        assert standing in ({None, "new"} if fresh else {"old", "new"}), (at, faults.hit)
        if standing == "new" and not fresh:
            shutil.rmtree(place)
            shutil.copytree(builds / "old", place)
    assert faults.hit is None
    assert at > 50
    wanted = {(name, one) for name in ("write", "fsync") for one in (errno.ENOSPC, errno.EIO)}
    assert fresh or wanted <= names
    assert stands(place, builds) == "new"
    assert leftovers(place) == []


@pytest.fixture
def quick(monkeypatch):
    """What fsync does can't be seen here, only that it is called, and its time can."""
    monkeypatch.setattr(os, "fsync", lambda _: None)


@FORKS
def test_of_two_compiles_at_once_one_is_told_to_wait(place, builds, monkeypatch):
    inside, go = os.pipe(), os.pipe()
    plain = HashedFile.write

    def waiting(*arguments):
        os.write(inside[1], b"x")
        os.read(go[0], 1)
        return plain(*arguments)

    def work():
        monkeypatch.setattr(HashedFile, "write", waiting)
        return compiled(place, *NEW)

    child = forked(work)
    try:
        assert select.select([inside[0]], [], [], 60)[0], "the first compile wrote nothing"
        assert compiled(place) == 2
        assert "bundle.locked" in compiled.said
        assert stands(place, builds) == "old"
    finally:
        os.write(go[1], b"x" * 1000)
        status = ended(child)
    assert status == 0
    assert stands(place, builds) == "new"
    assert leftovers(place) == []


@FORKS
def test_two_compiles_that_race_both_end_well(place, builds):
    def work():
        status = compiled(place, *NEW)
        return 3 if "bundle.locked" in compiled.said else status

    outcomes = sorted(ended(one) for one in [forked(work), forked(work)])
    assert outcomes in ([0, 0], [0, 3])
    assert stands(place, builds) == "new"
    assert leftovers(place) == []


# --- a disk that is really full --------------------------------------------------------------


@pytest.fixture
def disk(tmp_path):
    """Makes a disk of so many kilobytes."""
    mounted = []

    def make(kilobytes):
        where = tmp_path / f"disk{len(mounted)}"
        where.mkdir()
        options = ["-t", "tmpfs", "-o", f"size={kilobytes}k", "tmpfs", str(where)]
        try:
            done = subprocess.run(["mount", *options], capture_output=True, text=True, check=False)
        except FileNotFoundError:
            pytest.skip("there is no `mount`")
        if done.returncode:
            pytest.skip(f"a small disk can't be mounted: {done.stderr.strip()}")
        mounted.append(where)
        return where

    yield make
    for where in mounted:
        subprocess.run(["umount", str(where)], check=True)


@pytest.mark.parametrize("kilobytes", [4, 12, 20, 40, 60, 80, 96, 104, 112, 120, 128])
def test_a_full_disk_is_told_and_leaves_nothing(disk, checkpoint, monkeypatch, kilobytes):
    monkeypatch.chdir(checkpoint)
    target = disk(kilobytes) / "b"
    assert compiled(target) == 2
    assert "error[bundle.disk-full]" in compiled.said
    assert list(target.parent.iterdir()) == []


def test_a_full_disk_leaves_the_old_bundle(disk, checkpoint, builds, monkeypatch):
    monkeypatch.chdir(checkpoint)
    target = disk(200) / "b"
    assert compiled(target, *NEW) == 0
    assert compiled(target) == 2
    assert "error[bundle.disk-full]" in compiled.said
    assert stands(target, builds) == "new"
    assert leftovers(target) == []
    shutil.rmtree(target)
    assert compiled(target) == 0


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no /dev/full")
def test_a_rope_table_on_a_full_disk_tells_so():
    """`np.save` would tell of bytes that were not written, and not why."""
    with pytest.raises(OSError) as found:
        files = AngleFiles(path="full", dtype="fp16", positions=24)
        rope = architecture.Rope(theta=10.0, width=8)
        _write_angles(Path("/dev/full"), rope, files, (np.cos, np.sin))
    assert found.value.errno == errno.ENOSPC


# --- processes that help ---------------------------------------------------------------------


def alive(process):
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def children(process):
    return [
        int(one)
        for task in Path(f"/proc/{process}/task").iterdir()
        for one in (task / "children").read_text().split()
    ]


def begun(place):
    """A compile by two workers, and the workers, once both hold the lock."""
    code = "from topoc.dsl.cli import main; main()"
    arguments = ["compile", "tiny.topo", "--weights", "random:1", "-o", str(place), "--jobs", "2"]
    parent = subprocess.Popen(
        [sys.executable, "-c", code, *arguments],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    lock = place.with_name(f".{place.name}.topoc-lock")
    workers, end = [], time.monotonic() + 60
    while len(workers) < 2 and time.monotonic() < end and parent.poll() is None:
        time.sleep(0.05)
        workers = [one for one in children(parent.pid) if holds(one, lock)]
    assert len(workers) == 2
    return parent, workers


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_workers_hold_the_lock_and_end_with_their_compile(place, builds):
    """Else they would write into the next compile's folder."""
    parent, workers = begun(place)
    parent.kill()
    parent.communicate()
    end = time.monotonic() + 60
    while any(map(alive, workers)) and time.monotonic() < end:
        time.sleep(0.02)
    assert not any(map(alive, workers))
    assert stands(place, builds) == "old"
    assert compiled(place) == 0
    assert leftovers(place) == []


INTERRUPTED = "interrupted; what stood before still stands\n"


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_a_compile_that_is_told_to_end_takes_its_workers_along(place, builds):
    parent, workers = begun(place)
    parent.terminate()
    assert INTERRUPTED in parent.communicate()[1]  # a worker that was just born may say a word
    assert parent.returncode == 2
    assert not any(map(alive, workers))
    assert stands(place, builds) == "old"
    assert leftovers(place) == []


SEALED = """
import os, signal, sys
from topoc.lowering.bundle.writer import BundleWriter
BundleWriter.seal = lambda *_: os.kill(os.getpid(), signal.SIGTERM)
from topoc.dsl.cli import main
main()
"""


def test_a_compile_that_is_told_to_end_clears_away_what_it_began(place, builds):
    """SIGTERM comes when all of the new bundle is written but its manifest."""
    command = [sys.executable, "-c", SEALED, "compile", NEW[0], "--weights", "random:1"]
    done = subprocess.run([*command, "-o", place], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr.endswith(INTERRUPTED)) == (2, True), done.stderr
    assert stands(place, builds) == "old"
    assert leftovers(place) == []


def holds(process, file):
    try:
        handles = list(Path(f"/proc/{process}/fd").iterdir())
        return any(str(one.readlink()) == str(file) for one in handles)
    except (FileNotFoundError, ProcessLookupError):
        return False


def test_what_a_worker_finds_is_told(checkpoint, tmp_path, monkeypatch):
    """Our errors don't pickle as they are."""
    from concurrent.futures import Future
    from concurrent.futures.process import BrokenProcessPool

    from topoc.dsl.diagnostic import TopocError
    from topoc.lowering import packages
    from topoc.lowering.reuse import Reuse

    settings = packages.Settings({}, "", tmp_path, 0, False, None)
    work = packages._Work(
        architecture=architecture.read(checkpoint),
        checkpoint=str(tmp_path / "gone"),
        settings=settings,
        reuse=Reuse(""),
    )
    monkeypatch.setattr(packages, "_WORK", [work])
    packages._compressor.cache_clear()
    told = Future()
    told.set_result(packages._written(0))
    with pytest.raises(TopocError, match=r"checkpoint\.missing-file"):
        packages._result(told, "first")
    lost = Future()
    lost.set_exception(BrokenProcessPool("it was killed"))
    with pytest.raises(TopocError, match=r"bundle\.worker-lost"):
        packages._result(lost, "first")


def test_workers_end_with_what_went_wrong(tmp_path):
    """A compile that ends early waits for none of them: their work would be thrown away."""
    from concurrent.futures.process import BrokenProcessPool
    from types import SimpleNamespace

    from topoc.lowering.bundle.worker import Lock
    from topoc.lowering.packages import PackageWriter

    lock = Lock(os.open(tmp_path / "lock", os.O_RDWR | os.O_CREAT))
    compile_ = SimpleNamespace(jobs=1, writer=SimpleNamespace(lock=lock))
    with pytest.raises(KeyboardInterrupt), PackageWriter._pool(compile_, 1, None) as pool:
        task = pool.submit(time.sleep, 20)
        raise KeyboardInterrupt
    os.close(lock.handle)
    assert task.cancelled() or isinstance(task.exception(), BrokenProcessPool)
