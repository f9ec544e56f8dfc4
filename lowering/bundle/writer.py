"""A bundle written beside its place and swapped in whole.

Beside a bundle `NAME` stand, while it is written, `.NAME.topoc-lock` and `.NAME.topoc-new`; where
the file system can't exchange two folders in one step, also `.NAME.topoc-old` for a moment. What
a killed compile leaves of them, the next one clears.
"""

import errno
import fcntl
import json
import os
import shutil
import stat
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Self

from attrs import define, evolve, field

from topoc.dsl.diagnostic import Place, TopocError, error
from topoc.lowering.bundle.bundle import MANIFEST
from topoc.lowering.bundle.digest import NOTHING, files_below, tree_digest
from topoc.lowering.bundle.exchange import exchange
from topoc.lowering.bundle.manifest_json import dumps
from topoc.lowering.bundle.worker import Lock
from topoc.lowering.manifest import SCHEMA, File, Manifest

FILE_MODE, FOLDER_MODE = 0o644, 0o755
FULL = frozenset({errno.ENOSPC, errno.EDQUOT})


def _resolved(path: Path) -> Path:
    """Where a link leads, so that the bundle behind it is exchanged and not the link."""
    return path.resolve()


@define
class BundleWriter:
    """Write into `directory`, then `seal`; leaving the `with` block puts the bundle in its place.

    Whatever goes wrong before that leaves the old bundle, or nothing where there was none.
    """

    path: Path = field(converter=_resolved)
    _lock: int | None = field(default=None, init=False, repr=False)
    _sealed: bool = field(default=False, init=False, repr=False)

    @property
    def directory(self) -> Path:
        """Where the new bundle is written."""
        return self.path.with_name(f".{self.path.name}.topoc-new")

    @property
    def lock(self) -> Lock:
        """For the processes that write into `directory` too."""
        if self._lock is None:
            message = "the bundle is not being written"
            raise ValueError(message)
        return Lock(self._lock)

    @property
    def _aside(self) -> Path:
        return self.path.with_name(f".{self.path.name}.topoc-old")

    def __enter__(self) -> Self:
        if not self.path.name:
            message = f"`{self.path}` can't be a bundle"
            place = Place(str(self.path))
            raise TopocError(error("bundle.not-a-bundle", message, place, help="name a folder"))
        with _told(self.path):
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._lock = _acquire(self._lock_file)
        try:
            with _told(self.path):
                self._restore()
                _refuse_others(self.path)
                self._clear()
                self.directory.mkdir()
        except BaseException:
            self._release()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        failure: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        try:
            if failure is None:
                with _told(self.path):
                    self._commit()
            elif isinstance(failure, OSError):
                raise _refusal(failure, self.path) from failure
        finally:
            try:
                with _told(self.path):
                    self._restore()
                    self._clear()
            finally:
                self._release()

    def seal(self, manifest: Manifest, known: Mapping[Path, str] = NOTHING) -> Manifest:
        """List every file and package of `directory` in the manifest, and write it there.

        Of some files the hash may be known.
        """
        packages = {step.package for one in manifest.functions for step in one.steps}
        paths = {
            self._package_of(one, packages) or one.relative_to(self.directory).as_posix()
            for one in files_below(self.directory)
        }
        digests = {path: tree_digest(self.directory / path, known) for path in paths - {MANIFEST}}
        files = tuple(File(path=p, bytes=n, sha256=h) for p, (n, h) in sorted(digests.items()))
        whole = evolve(manifest, files=files)
        (self.directory / MANIFEST).write_text(dumps(whole), encoding="utf-8", newline="\n")
        self._sealed = True
        return whole

    def _package_of(self, file: Path, packages: set[str]) -> str | None:
        """The package that a file is a part of."""
        relative = file.relative_to(self.directory)
        parts = (parent.as_posix() for parent in relative.parents)
        return next((part for part in parts if part in packages), None)

    def _commit(self) -> None:
        """Bring everything to the disk, then put it in place in one step."""
        if not self._sealed:
            message = f"`{self.path.name}` was not finished"
            raise TopocError(error("bundle.not-sealed", message, Place(str(self.path))))
        _sync_tree(self.directory)
        _refuse_others(self.path)
        if not self.path.exists():
            self.directory.rename(self.path)
        elif not exchange(self.directory, self.path):
            self.path.rename(self._aside)
            self.directory.rename(self.path)
        _sync(self.path.parent)

    def _restore(self) -> None:
        """Put the old bundle back where a swap in two steps was cut between them."""
        if self._aside.exists() and not self.path.exists():
            self._aside.rename(self.path)

    def _clear(self) -> None:
        """Remove what stands beside the bundle: a half-written new one, a replaced old one."""
        for leftover in (self.directory, self._aside):
            if leftover.exists():
                shutil.rmtree(leftover)

    @property
    def _lock_file(self) -> Path:
        return self.path.with_name(f".{self.path.name}.topoc-lock")

    def _release(self) -> None:
        """Remove the lock file while the lock is still held, then let it go."""
        if self._lock is None:
            return
        lock, self._lock = self._lock, None
        try:
            with _told(self.path):
                self._lock_file.unlink()
        finally:
            os.close(lock)


def _acquire(path: Path) -> int:
    """The open and locked file; again, where its last holder removed it meanwhile."""
    while True:
        lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if path.exists() and os.fstat(lock).st_ino == path.stat().st_ino:
                return lock
        except BlockingIOError as held:
            os.close(lock)
            message = f"another compile is writing `{path.parent / _named(path)}`"
            remedy = "wait for it, or give another folder with `-o`"
            place = Place(str(path))
            raise TopocError(error("bundle.locked", message, place, help=remedy)) from held
        except BaseException:
            os.close(lock)
            raise
        os.close(lock)


def _named(lock: Path) -> str:
    """The bundle that a lock file stands for."""
    return lock.name.removeprefix(".").removesuffix(".topoc-lock")


def _refuse_others(path: Path) -> None:
    """A folder that holds something else than a bundle is nobody's to replace."""
    if not path.exists() or (path.is_dir() and (_is_bundle(path) or not any(path.iterdir()))):
        return
    message = f"`{path}` is not a bundle of topoc and would be replaced"
    remedy = "give another folder with `-o`, or empty it"
    raise TopocError(error("bundle.not-a-bundle", message, Place(str(path)), help=remedy))


def _is_bundle(path: Path) -> bool:
    """Whether it holds a manifest of any version of our schema."""
    try:
        raw = json.loads((path / MANIFEST).read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError, IsADirectoryError, ValueError, RecursionError):
        return False
    family = SCHEMA.partition("/")[0] + "/"
    return isinstance(raw, dict) and str(raw.get("schema")).startswith(family)


def _sync_tree(path: Path) -> None:
    """Bring a folder's files to the disk, then its folders, the deepest first.

    Their modes are the same in every compile, and so are archives of them. Whom the umask keeps
    out is kept out by the bundle's own folder, which follows it.
    """
    for folder, _, names in os.walk(path, topdown=False):
        for name in names:
            _sync(Path(folder) / name, FILE_MODE)
        _sync(Path(folder), None if Path(folder) == path else FOLDER_MODE)


def _sync(path: Path, mode: int | None = None) -> None:
    """Bring one file or folder to the disk, with this mode."""
    handle = os.open(path, os.O_RDONLY)
    try:
        if mode is not None and stat.S_IMODE(os.fstat(handle).st_mode) != mode:
            os.fchmod(handle, mode)
        os.fsync(handle)
    finally:
        os.close(handle)


@contextmanager
def _told(path: Path) -> Iterator[None]:
    """Failures of the file system as diagnostics."""
    try:
        yield
    except OSError as failure:
        raise _refusal(failure, path) from failure


def _refusal(failure: OSError, path: Path) -> TopocError:
    place = Place(str(failure.filename or path))
    if failure.errno in FULL:
        remedy = "free some space, or give a folder on another disk with `-o`"
        message = f"the disk is full before `{path.name}` was finished"
        return TopocError(error("bundle.disk-full", message, place, help=remedy))
    why = (failure.strerror or str(failure)).lower()
    message = f"`{path.name}` can't be written: {why}"
    remedy = "give a folder that can be written with `-o`"
    if failure.filename and not Path(str(failure.filename)).is_relative_to(path.parent):
        remedy = "look at that file, then compile again"  # one that the compile reads
    return TopocError(error("bundle.cannot-write", message, place, help=remedy))
