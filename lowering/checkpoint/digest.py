"""What the weight files hold, as one hash."""

from collections.abc import Iterator
from functools import lru_cache
from hashlib import file_digest, sha256
from pathlib import Path

from topoc.lowering.checkpoint.random import POOL, TILE, Random
from topoc.lowering.checkpoint.reader import Reader


def digest(reader: Reader) -> str:
    """The SHA-256 of the weight file, or of the names and hashes of several.

    A seed's hash covers the shapes too, so it is asked of `Weights.reader`.
    """
    if isinstance(reader, Random):
        return sha256("\n".join(_seeded(reader)).encode()).hexdigest()
    hashes = [_file(file, file.stat().st_size, file.stat().st_mtime_ns) for file in reader.files]
    if len(hashes) == 1:
        return hashes[0]
    lines = (f"{one}  {file.name}" for one, file in zip(hashes, reader.files, strict=True))
    return sha256("\n".join(lines).encode()).hexdigest()


def _seeded(reader: Random) -> Iterator[str]:
    yield f"{reader.path}, gains off by {reader.offset}, {POOL} places of {TILE}"
    for entry in reader.entries.values():
        yield f"{entry.name} {entry.shape}"


@lru_cache(maxsize=1024)
def _file(path: Path, size: int, changed: int) -> str:
    """The hash of one file; the other arguments are only what makes it another one."""
    del size, changed
    with path.open("rb") as stream:
        return file_digest(stream, "sha256").hexdigest()
