"""The header of a GGUF file; every count and length in it is bounded by the file."""

import mmap
import struct
from collections.abc import Mapping
from itertools import pairwise
from math import prod
from pathlib import Path
from typing import NoReturn

import numpy as np
from attrs import define, frozen

from topoc.dsl.diagnostic import Place, TopocError, error
from topoc.lowering.checkpoint.reader import Entry
from topoc.lowering.checkpoint.safetensors import masquerade

MAGIC = b"GGUF"
VERSIONS = (2, 3)
MOST_AXES = 4
LEAST_TENSOR = 32  # bytes of the shortest tensor description
LEAST_PAIR = 13  # of the shortest key with its value
STRING, ARRAY = 8, 9
SCALARS = {
    0: "B",
    1: "b",
    2: "H",
    3: "h",
    4: "I",
    5: "i",
    6: "f",
    7: "?",
    10: "Q",
    11: "q",
    12: "d",
}

# What a value in the metadata may be; arrays become tuples.
Value = int | float | bool | str | tuple[int, ...] | tuple[float, ...] | tuple[str, ...]


@frozen
class Stored:
    """One tensor: its entry, its quantisation, and where its data starts and ends."""

    entry: Entry
    kind: int
    start: int
    stop: int


@define
class _Cursor:
    """A place in the header that never leaves the file."""

    file: Path
    data: mmap.mmap
    at: int = 0

    def fail(self, found: str, part: str = "", way: str = "") -> NoReturn:
        """Stop: this file is not what it says."""
        place = Place(str(self.file), part)
        raise TopocError(error("checkpoint.unreadable", found, place, help=way))

    def take(self, size: int) -> int:
        """Step over some bytes and say where they start."""
        start = self.at
        if size > len(self.data) - start:
            found = f"the header goes on at byte {start} and the file ends at {len(self.data)}"
            self.fail(found, way="download the file again")
        self.at += size
        return start

    def scalar(self, code: str) -> int | float | bool:
        """One number."""
        size = struct.calcsize(f"<{code}")
        value: int | float | bool = struct.unpack_from(f"<{code}", self.data, self.take(size))[0]
        return value

    def whole(self, code: str = "Q") -> int:
        """One whole number."""
        return int(self.scalar(code))

    def text(self) -> str:
        """One string."""
        size = self.whole()
        start = self.take(size)
        try:
            return self.data[start : start + size].decode()
        except UnicodeDecodeError:
            self.fail(f"the string at byte {start} is not UTF-8")

    def count(self, what: str, least: int) -> int:
        """How many things follow, each of which takes at least some bytes."""
        count = self.whole()
        if count * least > len(self.data) - self.at:
            found = f"the header claims {count} {what} and the file has {len(self.data)} bytes"
            self.fail(found, way="download the file again")
        return count

    def value(self) -> Value:
        """One value of the metadata."""
        kind = self.whole("I")
        if kind == STRING:
            return self.text()
        if kind == ARRAY:
            return self.array()
        return self.scalar(self.code(kind))

    def array(self) -> Value:
        """One array of strings or numbers."""
        kind = self.whole("I")
        if kind == STRING:
            return self.strings()
        code = self.code(kind)
        size = struct.calcsize(f"<{code}")
        count = self.count("numbers", size)
        found = np.frombuffer(self.data, f"<{code}", count, self.take(count * size))
        return tuple(found.tolist())

    def strings(self) -> tuple[str, ...]:
        """Many strings: a vocabulary has a quarter of a million, so the loop is tight."""
        length, data, end = struct.Struct("<Q").unpack_from, self.data, len(self.data)
        count = self.count("strings", 8)
        found: list[bytes] = []
        at = self.at
        for _ in range(count):
            start = at + 8
            at = start + length(data, at)[0] if start <= end else end + 1
            if at > end:
                self.fail(f"string {len(found)} goes on after the file ends at {end}")
            found.append(data[start:at])
        self.at = at
        try:
            return tuple(one.decode() for one in found)
        except UnicodeDecodeError:
            self.fail("the metadata holds a string that is not UTF-8")

    def code(self, kind: int) -> str:
        """The packing of a number."""
        if kind not in SCALARS:
            self.fail(f"the metadata holds a value of the unknown type {kind}")
        return SCALARS[kind]


def read(file: Path, data: mmap.mmap) -> tuple[Mapping[str, Value], Mapping[str, Stored]]:
    """The metadata and the tensors of a file."""
    cursor = _Cursor(file, data)
    _begin(cursor)
    tensors = cursor.count("tensors", LEAST_TENSOR)
    metadata: dict[str, Value] = {}
    for _ in range(cursor.count("keys", LEAST_PAIR)):
        key = cursor.text()
        if key in metadata:
            cursor.fail(f"key `{key[:60]}` stands twice in the metadata", key[:60])
        metadata[key] = cursor.value()
    alignment = metadata.get("general.alignment", 32)
    if type(alignment) is not int or not 8 <= alignment <= 65536 or alignment % 8:
        cursor.fail(f"tensors cannot be aligned to {alignment} bytes")
    found = [_tensor(cursor) for _ in range(tensors)]
    base = -(-cursor.at // alignment) * alignment
    stored = [_place(cursor, one, base, alignment) for one in found]
    _cover(cursor, stored, alignment)
    return metadata, {one.entry.name: one for one in stored}


def _begin(cursor: _Cursor) -> None:
    other = masquerade(cursor.data)
    if other:
        cursor.fail(other[0], way=other[1])
    if cursor.data[:4] != MAGIC:
        cursor.fail("the file does not start like a GGUF file")
    cursor.take(4)
    version = cursor.whole("I")
    if version not in VERSIONS:
        swapped = int.from_bytes(version.to_bytes(4, "little"), "big")
        found = "is big-endian" if swapped in VERSIONS else f"has version {version}"
        cursor.fail(f"the GGUF file {found}, and versions 2 and 3 little-endian are read")


def _tensor(cursor: _Cursor) -> tuple[str, tuple[int, ...], int, int]:
    """Name, shape with the slowest axis first, kind and offset."""
    name = cursor.text()
    axes = cursor.whole("I")
    if not 1 <= axes <= MOST_AXES:
        cursor.fail(f"tensor `{name[:80]}` has {axes} axes", name[:80])
    shape = tuple(cursor.whole() for _ in range(axes))[::-1]
    return name, shape, cursor.whole("I"), cursor.whole()


def _place(
    cursor: _Cursor, one: tuple[str, tuple[int, ...], int, int], base: int, alignment: int
) -> Stored:
    """A tensor whose data lies inside the file."""
    from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType

    name, shape, kind, offset = one
    if kind not in GGML_QUANT_SIZES:
        cursor.fail(f"tensor `{name[:80]}` has the unknown type {kind}", name[:80])
    label, (block, size) = GGMLQuantizationType(kind).name, GGML_QUANT_SIZES[kind]
    if min(shape) < 1 or shape[-1] % block:
        found = f"tensor `{name[:80]}` has rows of {shape[-1]}, and {label} blocks hold {block}"
        cursor.fail(found, name[:80])
    start, stop = base + offset, base + offset + prod(shape) // block * size
    if offset % alignment or stop > len(cursor.data):
        found = f"tensor `{name[:80]}` ends at byte {stop} and the file has {len(cursor.data)}"
        if offset % alignment:
            found = f"tensor `{name[:80]}` starts at {offset}, which is no multiple of {alignment}"
        cursor.fail(found, name[:80], "download the file again")
    return Stored(Entry(name=name, shape=shape, dtype=label), kind, start, stop)


def _cover(cursor: _Cursor, stored: list[Stored], alignment: int) -> None:
    """No two tensors share a name or a byte, and no data follows the last."""
    names = [one.entry.name for one in stored]
    if len(set(names)) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        place = Place(str(cursor.file), twice)
        raise TopocError(error("checkpoint.duplicate", f"`{twice}` is stored twice", place))
    inner = sorted(stored, key=lambda one: one.start)
    for one, other in pairwise(inner):
        if other.start < one.stop:
            found = f"`{other.entry.name}` starts inside `{one.entry.name}`"
            cursor.fail(found, other.entry.name)
    end = max((one.stop for one in stored), default=len(cursor.data))
    if len(cursor.data) - end >= alignment:
        found = f"the tensors end at byte {end} and the file has {len(cursor.data)}"
        cursor.fail(found, way="download the file again")
