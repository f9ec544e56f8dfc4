"""What the weight files hold, as one hash."""

from collections.abc import Iterator
from functools import lru_cache
from hashlib import file_digest, sha256
from pathlib import Path
from time import time_ns

from attrs import astuple, frozen

from topoc.lowering.checkpoint.random import POOL, TILE, Random
from topoc.lowering.checkpoint.reader import Reader
from topoc.lowering.kept import Kept, name_of

SETTLED = 2_000_000_000  # nanoseconds: a file may change twice within one tick of a disk's clock


def digest(reader: Reader, kept: Kept | None = None) -> str:
    """The SHA-256 of the weight file, or of the names and hashes of several.

    A seed's hash covers the shapes too, so it is asked of `Weights.reader`. With a cache a file is
    hashed when it is new, or was touched since.
    """
    if isinstance(reader, Random):
        return sha256("\n".join(_seeded(reader)).encode()).hexdigest()
    return _joined(reader, [_hash(file, kept) for file in reader.files])


def known_digest(reader: Reader, kept: Kept) -> str | None:
    """The same where it takes no time: None where a file would have to be hashed."""
    if isinstance(reader, Random):
        return digest(reader)
    hashes = [kept.fact(_State.of(file).name) for file in reader.files]
    return None if None in hashes else _joined(reader, hashes)


def _joined(reader: Reader, hashes: list[str]) -> str:
    if len(hashes) == 1:
        return hashes[0]
    lines = (f"{one}  {file.name}" for one, file in zip(hashes, reader.files, strict=True))
    return sha256("\n".join(lines).encode()).hexdigest()


def _seeded(reader: Random) -> Iterator[str]:
    yield f"{reader.path}, gains off by {reader.offset}, {POOL} places of {TILE}"
    for entry in reader.entries.values():
        yield f"{entry.name} {entry.shape}"


@frozen
class _State:
    """What a disk tells of a file; whoever writes to it changes some of that."""

    path: Path
    disk: int
    number: int
    size: int
    written: int
    changed: int  # set by the system alone, and not by who copies a file's times

    @classmethod
    def of(cls, path: Path) -> "_State":
        """What it tells now."""
        found, whole = path.stat(), path.resolve()
        times = found.st_mtime_ns, found.st_ctime_ns
        return cls(whole, found.st_dev, found.st_ino, found.st_size, *times)

    @property
    def name(self) -> str:
        """What a cache calls the hash of a file in this state."""
        return name_of("weight file", *astuple(self))

    def settled(self, now: int) -> bool:
        """Whether a later write would show in its times."""
        return max(self.written, self.changed) + SETTLED < now


def _hash(path: Path, kept: Kept | None) -> str:
    before, now = _State.of(path), time_ns()
    known: str | None = None if kept is None else kept.fact(before.name)
    if known is not None:
        return known
    found = _hashed(before)
    if kept is not None and before.settled(now) and _State.of(path) == before:
        kept.note(before.name, found, path.name, "hash of a weight file")
    return found


@lru_cache(maxsize=1024)
def _hashed(state: _State) -> str:
    with state.path.open("rb") as stream:
        return file_digest(stream, "sha256").hexdigest()
