"""The user's cache folder: what one compile made and others need again.

An entry is one file, named by the hash of what it was made from: a magic line, a checksum of all
that follows, a description in JSON, and data. A file of a bundle that is kept whole lies beside its
entry, so that bundles can share it. Entries are written beside their name and then renamed, so
that they are there whole or not at all; two compiles that make one entry write the same bytes.
Checksums (`sums.py`, six times as fast as a hash) are compared each time an entry is read: nobody
but a disk changes one. What was used longest ago goes first when the folder is too full.
"""

import errno
import json
import mmap
import os
import shutil
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from hashlib import file_digest, sha256
from pathlib import Path
from tempfile import NamedTemporaryFile
from time import time
from typing import Any, BinaryIO
from zlib import crc32

from attrs import define, field, frozen

from topoc.lowering.hashed import Buffer
from topoc.lowering.sums import Sums, adder, begun, checksum, ended, sums

LIMIT = 20 << 30  # bytes
MAGIC = b"topoc entry 5\n"
SUM = 8
HEAD = len(MAGIC) + SUM + 8  # the name of the form, a checksum, the length of the description
ALIGNMENT = 64
SUFFIXES = WEIGHT, FACT, VALUES, FILE = ".weight", ".fact", ".values", ".file"
DATA = ".data"  # of a file, beside its entry
UNLINKABLE = frozenset({errno.EXDEV, errno.EPERM, errno.EMLINK, errno.ENOTSUP, errno.EOPNOTSUPP})
ABANDONED = 86_400  # seconds after which nobody is still writing a file


def folder() -> Path:
    """Where things are kept unless it is said otherwise."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "topoc" / "weights"


def name_of(*decides: object) -> str:
    """The name of an entry, by all that decides on it."""
    return sha256(repr(decides).encode()).hexdigest()


@frozen
class Entry:
    """One thing that is kept."""

    key: str
    label: str  # what it was called when it was made
    recipe: str  # or what else it is
    bytes: int
    used: float  # seconds since 1970


@define
class Kept:
    """A folder of entries; other processes may use it at the same time."""

    root: Path = field(factory=folder)
    limit: int = LIMIT
    damaged: list[str] = field(factory=list)  # keys of entries that were not what they should be
    _begun: dict[str, Sums] = field(factory=dict, init=False, repr=False)

    def fact(self, name: str) -> Any:  # as JSON has it
        """What was noted under a name; None where nothing was."""
        found = self.read(name + FACT)
        return None if found is None else json.loads(found.mapped[found.at :])

    def note(self, name: str, value: object, label: str, kind: str = "measured") -> None:
        """Note a value that JSON can hold, and what kind of thing it is."""
        text = json.dumps(value).encode()
        self.write(name + FACT, {"label": label, "recipe": kind}, (text,))

    def values(self, name: str) -> memoryview | None:
        """Bytes that were kept under a name; None where none were."""
        found = self.read(name + VALUES)
        return None if found is None else memoryview(found.mapped)[found.at :]

    def keep_values(self, name: str, values: Buffer, label: str, kind: str) -> None:
        """Keep some bytes."""
        self.write(name + VALUES, {"label": label, "recipe": kind}, (values,))

    @contextmanager
    def ahead(self, names: Iterable[str]) -> Iterator[None]:
        """Within the block, look in the background at files that will be linked."""
        with adder(spared=1) as threads:
            for name in names:
                with suppress(FileNotFoundError):  # it is not kept
                    self._begun[name] = begun(self.root / (name + DATA), threads)
            try:
                yield
            finally:
                self._begun.clear()

    def link(self, name: str, target: Path) -> str | None:
        """Give a kept file another name; tells its SHA-256, and None where it is not kept.

        Where names of one file can't be on both disks it is copied.
        """
        found, data = self.read(name + FILE), self.root / (name + DATA)
        if found is None:
            return None
        try:
            ahead = self._begun.pop(name, None)
            if (sums(data) if ahead is None else ended(ahead)) != found.told["sums"]:
                self._damaged(name + FILE)
                return None
            linked(data, target)
        except FileNotFoundError:  # pruned meanwhile
            return None
        digest: str = found.told["sha256"]
        return digest

    def keep(self, name: str, path: Path, label: str) -> str:
        """Keep a file that will not be written again; tells its SHA-256."""
        self.root.mkdir(parents=True, exist_ok=True)
        with path.open("rb") as file:
            digest = file_digest(file, "sha256").hexdigest()
        with self._fresh(name + DATA) as beside:
            beside.unlink()
            linked(path, beside)
        told = {"label": label, "recipe": "host table", "sha256": digest, "sums": sums(path)}
        self.write(name + FILE, {**told, "bytes": path.stat().st_size}, ())
        return digest

    def read(self, file: str) -> "Read | None":
        """The entry of a file name, if it is there and whole; a damaged one is removed."""
        path = self.root / file
        try:
            with path.open("rb") as opened:
                os.utime(path)
                mapped = mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_COPY)
        except FileNotFoundError:
            return None
        except ValueError:  # an empty file can't be mapped
            mapped = None
        found = None if mapped is None else _read(mapped)
        if found is None:
            self._damaged(file)
        return found

    def write(self, file: str, told: dict[str, Any], pieces: Iterable[Buffer]) -> None:
        """Write an entry, and make room for it."""
        self.root.mkdir(parents=True, exist_ok=True)
        with self._fresh(file) as beside, beside.open("w+b") as opened:
            _write(opened, told, pieces)
        if self._bytes() > self.limit:
            self.prune(self.limit)

    def entries(self) -> list[Entry]:
        """All entries, those used last before the others."""
        found = [_entry(path) for suffix in SUFFIXES for path in self.root.glob(f"*{suffix}")]
        return sorted((one for one in found if one), key=lambda one: (-one.used, one.key))

    def prune(self, limit: int) -> list[Entry]:
        """Remove what was used longest ago until the rest has at most so many bytes."""
        removed, left = [], limit
        for one in self.entries():
            left -= one.bytes
            if left < 0:
                for suffix in (*SUFFIXES, DATA):
                    (self.root / (one.key + suffix)).unlink(missing_ok=True)
                removed.append(one)
        for path in self.root.glob(".*.part"):
            if (written := _changed(path)) is not None and written < time() - ABANDONED:
                path.unlink(missing_ok=True)
        return removed

    @contextmanager
    def _fresh(self, file: str) -> Iterator[Path]:
        """A file beside a name, which takes the name when it is whole."""
        with NamedTemporaryFile(dir=self.root, prefix=".", suffix=".part", delete=False) as made:
            beside = Path(made.name)
        try:
            yield beside  # what a lost power leaves of it, its checksum will tell
            beside.replace(self.root / file)
        except BaseException:
            beside.unlink(missing_ok=True)
            raise

    def _damaged(self, file: str) -> None:
        name, dot, suffix = file.partition(".")
        self.damaged.append(name)
        for one in (dot + suffix, DATA):
            (self.root / (name + one)).unlink(missing_ok=True)

    def _bytes(self) -> int:
        """What the folder holds, by the sizes of its files alone."""
        whole = 0
        with os.scandir(self.root) as found:
            for one in found:
                with suppress(FileNotFoundError):  # another process removed it meanwhile
                    whole += one.stat().st_size
        return whole


@frozen
class Read:
    """An entry in memory."""

    told: dict[str, Any]
    mapped: mmap.mmap = field(repr=False)
    at: int  # where its data begins


def linked(source: Path | str, target: Path | str) -> None:
    """One file under two names; a copy on a disk that knows no such thing."""
    try:
        os.link(source, target)
    except OSError as failure:
        if failure.errno not in UNLINKABLE:
            raise
        shutil.copyfile(source, target)


def _changed(path: Path) -> float | None:
    """When a file was last written; None if another process removed it meanwhile."""
    try:
        return path.stat().st_mtime
    except FileNotFoundError:
        return None


def _write(file: BinaryIO, told: dict[str, Any], pieces: Iterable[Buffer]) -> None:
    """The checksum of all that follows; how long the description is; the description; the data."""
    text = json.dumps(told).encode()
    text += b" " * (-(HEAD + len(text)) % ALIGNMENT)
    file.write(MAGIC + bytes(SUM) + len(text).to_bytes(8, "little") + text)
    file.writelines(pieces)
    file.flush()
    with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped:
        found = _sum(memoryview(mapped), HEAD + len(text))
    file.seek(len(MAGIC))
    file.write(found.to_bytes(SUM, "little"))


def _sum(whole: memoryview, data: int) -> int:
    """The checksum of an entry whose data begins there; where it stands itself is left out."""
    with whole:
        return checksum(whole[data:], crc32(whole[HEAD - 8 : data]))


def _read(mapped: mmap.mmap) -> Read | None:
    """A mapped entry; None if anything in it is not as it was written."""
    size = int.from_bytes(mapped[HEAD - 8 : HEAD], "little")
    found = _sum(memoryview(mapped), HEAD + size)
    if mapped[: HEAD - 8] != MAGIC + found.to_bytes(SUM, "little"):
        return None
    return Read(json.loads(mapped[HEAD : HEAD + size]), mapped, HEAD + size)


def _entry(path: Path) -> Entry | None:
    """What is told of an entry; None if it is gone, and little of one that can't be read."""
    try:
        found = path.stat()
        with path.open("rb") as file:
            told = _described(file)
    except FileNotFoundError:
        return None
    return Entry(
        path.stem,
        str(told.get("label", "")),
        str(told.get("recipe", "damaged")),
        found.st_size + int(told.get("bytes", 0)),
        found.st_mtime,
    )


def _described(file: BinaryIO) -> dict[str, Any]:
    head = file.read(HEAD)
    size = int.from_bytes(head[-8:], "little")
    try:
        told = json.loads(file.read(min(size, 1 << 20)))
    except ValueError:
        return {}
    return told if isinstance(told, dict) else {}
