"""Sizes and hashes of what a bundle holds."""

import hashlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import MappingProxyType

NOTHING: Mapping[Path, str] = MappingProxyType({})


def tree_digest(path: Path, known: Mapping[Path, str] = NOTHING) -> tuple[int, str]:
    """Bytes and sha256 of a file, or of a folder's files in the order of their relative paths.

    A folder's hash is over one line a file: its relative path, a tab, bytes, a tab, its sha256.
    The hashes of some files may be known.
    """
    if not path.is_dir():
        return _file_digest(path, known)
    whole, size = hashlib.sha256(), 0
    for one in files_below(path):
        bytes_, digest = _file_digest(one, known)
        size += bytes_
        whole.update(f"{one.relative_to(path).as_posix()}\t{bytes_}\t{digest}\n".encode())
    return size, whole.hexdigest()


def files_below(path: Path) -> Iterator[Path]:
    """Every file of a folder, in the order of the relative paths' code points."""
    found = (one for one in path.rglob("*") if not one.is_dir())
    return iter(sorted(found, key=lambda one: one.relative_to(path).as_posix()))


def _file_digest(path: Path, known: Mapping[Path, str]) -> tuple[int, str]:
    """Streamed, so that memory stays small whatever the file."""
    if path in known:
        return path.stat().st_size, known[path]
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256")
        return file.tell(), digest.hexdigest()
