"""Compressed weights in the user's cache folder, by what they were made from.

An entry is one file, named by the hash of the weight's numbers, its recipe and the method. It is
written beside its name and then renamed, so that it is there whole or not at all; two compiles
that make one entry write the same bytes. Its hash is checked each time it is read. What was used
longest ago goes first when the folder is too full.
"""

import json
import mmap
import os
from contextlib import suppress
from hashlib import sha256
from pathlib import Path
from tempfile import NamedTemporaryFile
from time import time
from typing import Any, BinaryIO

import numpy as np
from attrs import astuple, define, field, frozen

from topoc.lowering.compress import batch, kmeans
from topoc.lowering.compress.importance import Importance
from topoc.lowering.compress.parts import Compressed, Damage, Part, size_of
from topoc.lowering.compress.recipe import Recipe

LIMIT = 20 << 30  # bytes
MAGIC = b"topoc weight 2\n"
DIGEST = 32
HEAD = len(MAGIC) + DIGEST + 8  # the name of the form, a hash, the length of the description
ALIGNMENT = 64
SUFFIX = ".weight"
ABANDONED = 86_400  # seconds after which nobody is still writing a file
METHOD = (kmeans.VERSION, batch.GROUPS, batch.WEIGHTS, batch.AGAIN)


def folder() -> Path:
    """Where weights are kept unless it is said otherwise."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "topoc" / "weights"


def key(content: str, how: Recipe, importance: Importance | None = None, more: str = "") -> str:
    """The name of an entry.

    `content` tells the weight's numbers, as `source.content` does or any hash that decides on
    them; `more` tells whatever else went into the result, as the products of error feedback.
    """
    digest = sha256(repr((content, how, METHOD, more)).encode())
    for one in () if importance is None else (importance.columns, importance.rows):
        digest.update(b"-" if one is None else np.ascontiguousarray(one, "<f8").tobytes())
    return digest.hexdigest()


@frozen
class Entry:
    """One cached weight."""

    key: str
    label: str  # what it was called when it was made
    recipe: str
    bytes: int
    used: float  # seconds since 1970


@define
class Cache:
    """A folder of compressed weights; other processes may use it at the same time."""

    root: Path = field(factory=folder)
    limit: int = LIMIT
    damaged: list[str] = field(factory=list)  # keys of entries that were not what they should be

    def get(self, name: str, how: Recipe) -> Compressed | None:
        """The entry of a key, if it is there and whole; a damaged one is removed."""
        path = self._path(name)
        try:
            with path.open("rb") as file:
                os.utime(path)
                mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
        except FileNotFoundError:
            return None
        except ValueError:  # an empty file can't be mapped
            mapped = None
        found = None if mapped is None else _read(mapped, how)
        if found is None:
            self.damaged.append(name)
            path.unlink(missing_ok=True)
        return found

    def put(self, name: str, made: Compressed, label: str) -> None:
        """Write an entry, and make room for it."""
        self.root.mkdir(parents=True, exist_ok=True)
        with NamedTemporaryFile(dir=self.root, prefix=".", suffix=".part", delete=False) as file:
            try:
                _write(file, made, label)
                file.flush()  # what a lost power leaves of it, its hash will tell
                Path(file.name).replace(self._path(name))
            except BaseException:
                Path(file.name).unlink(missing_ok=True)
                raise
        if self._bytes() > self.limit:
            self.prune(self.limit)

    def entries(self) -> list[Entry]:
        """All entries, those used last before the others."""
        found = [_entry(path) for path in self.root.glob(f"*{SUFFIX}")]
        return sorted((one for one in found if one), key=lambda one: (-one.used, one.key))

    def prune(self, limit: int) -> list[Entry]:
        """Remove what was used longest ago until the rest has at most so many bytes."""
        removed, left = [], limit
        for one in self.entries():
            left -= one.bytes
            if left < 0:
                self._path(one.key).unlink(missing_ok=True)
                removed.append(one)
        for path in self.root.glob(".*.part"):
            if (written := _changed(path)) is not None and written < time() - ABANDONED:
                path.unlink(missing_ok=True)
        return removed

    def _bytes(self) -> int:
        """What the folder holds, by the sizes of its files alone."""
        whole = 0
        with os.scandir(self.root) as found:
            for one in found:
                with suppress(FileNotFoundError):  # another process removed it meanwhile
                    whole += one.stat().st_size
        return whole

    def _path(self, name: str) -> Path:
        return self.root / f"{name}{SUFFIX}"


def _changed(path: Path) -> float | None:
    """When a file was last written; None if another process removed it meanwhile."""
    try:
        return path.stat().st_mtime
    except FileNotFoundError:
        return None


def _write(file: Any, made: Compressed, label: str) -> None:  # tempfile's own wrapper
    """The hash of all that follows; how long the description is; the description; the constants."""
    parts = {name: [one.dtype, one.shape] for name, one in made.parts.items()}
    told = {
        "label": label,
        "recipe": repr(made.recipe),
        "rows": made.rows,
        "parts": parts,
        "damage": made.damage and astuple(made.damage),
    }
    text = json.dumps(told).encode()
    text += b" " * (-(HEAD + len(text)) % ALIGNMENT)
    told_of = len(text).to_bytes(8, "little") + text
    digest = sha256(told_of)
    file.write(MAGIC + bytes(DIGEST) + told_of)
    for one in made.parts.values():
        for piece in (one.data.data, bytes(-len(one.data) % ALIGNMENT)):
            file.write(piece)
            digest.update(piece)
    file.seek(len(MAGIC))
    file.write(digest.digest())


def _read(mapped: mmap.mmap, how: Recipe) -> Compressed | None:
    """The weight of a mapped entry; None if anything in it is not as it was written."""
    size = int.from_bytes(mapped[HEAD - 8 : HEAD], "little")
    digest = sha256(memoryview(mapped)[HEAD - 8 :]).digest()
    if mapped[: HEAD - 8] != MAGIC + digest:
        return None
    told = json.loads(mapped[HEAD : HEAD + size])
    at, parts = HEAD + size, {}
    for name, (dtype, shape) in told["parts"].items():
        many = size_of(dtype, tuple(shape))
        parts[name] = Part(dtype, tuple(shape), np.frombuffer(mapped, np.uint8, many, at))
        at += many + -many % ALIGNMENT
    damage = told["damage"] and Damage(*told["damage"])
    return Compressed(how, told["rows"], parts, damage)


def _entry(path: Path) -> Entry | None:
    """What is told of an entry; None if it is gone, and little of one that can't be read."""
    try:
        found = path.stat()
        with path.open("rb") as file:
            told = _described(file)
    except FileNotFoundError:
        return None
    name = path.name.removesuffix(SUFFIX)
    return Entry(
        name,
        str(told.get("label", "")),
        str(told.get("recipe", "damaged")),
        found.st_size,
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
