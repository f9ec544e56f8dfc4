"""Safetensors files: one, or the shards that an index names; mapped, and trusted in nothing."""

import json
import mmap
from collections.abc import Mapping
from itertools import pairwise
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, TypeGuard

import numpy as np
from attrs import field, frozen

from topoc.dsl.diagnostic import Place, TopocError, error
from topoc.lowering.checkpoint.reader import Entry
from topoc.lowering.jsonfile import load, once

if TYPE_CHECKING:
    import torch

LARGEST_HEADER = 100_000_000
MOST_AXES = 8

FLOATS = {"F32": "float32", "F16": "float16", "BF16": "bfloat16"}  # as torch calls them
BYTES = {
    "BOOL": 1, "U8": 1, "I8": 1, "F8_E4M3": 1, "F8_E5M2": 1, "F8_E8M0": 1,
    "I16": 2, "U16": 2, "F16": 2, "BF16": 2,
    "I32": 4, "U32": 4, "F32": 4,
    "I64": 8, "U64": 8, "F64": 8, "C64": 8,
}  # fmt: skip


@frozen
class Stored:
    """Where one tensor lies: its file and the first byte of its data."""

    file: Path
    entry: Entry
    start: int


@frozen
class Safetensors:
    """An open safetensors checkpoint; the maps live as long as it does."""

    path: Path
    files: tuple[Path, ...]
    stored: Mapping[str, Stored] = field(repr=False)
    maps: Mapping[Path, mmap.mmap] = field(repr=False, eq=False)
    notices: tuple[str, ...] = ()

    @property
    def entries(self) -> Mapping[str, Entry]:
        """The tensors by their stored names."""
        return {name: one.entry for name, one in self.stored.items()}

    def rows(self, name: str, start: int, stop: int) -> "torch.Tensor":
        """Rows of the slowest axis as float32."""
        import torch

        one = self.stored[name]
        shape = one.entry.shape
        width = prod(shape[1:]) * BYTES[one.entry.dtype]
        raw = np.frombuffer(
            self.maps[one.file], np.uint8, (stop - start) * width, one.start + start * width
        )
        values = torch.from_numpy(raw.copy()).view(getattr(torch, FLOATS[one.entry.dtype]))
        return values.reshape(stop - start, *shape[1:]).to(torch.float32)


def open_file(path: Path) -> Safetensors:
    """One file on its own."""
    return _open(path, (path,))


def open_shards(index: Path) -> Safetensors:
    """The shards that an index names, all of which must be there and hold what it says."""
    listed, total = _index(index)
    files = tuple(index.parent / name for name in sorted(set(listed.values())))
    absent = [file for file in files if not file.is_file()]
    if absent:
        way = "download the checkpoint again, in full"
        raise TopocError(
            *(
                error(
                    "checkpoint.missing-shard",
                    f"the index lists shard `{file.name}`, which is not there",
                    Place(str(index), file.name),
                    help=way,
                )
                for file in absent
            )
        )
    opened = _open(index.parent, files)
    _compare(index, listed, opened)
    size = sum(prod(one.entry.shape) * BYTES[one.entry.dtype] for one in opened.stored.values())
    if total is None or total == size:
        return opened
    note = f"`{index.name}` says {total} bytes in all, and the shards hold {size}"
    return Safetensors(opened.path, opened.files, opened.stored, opened.maps, (note,))


def _open(path: Path, files: tuple[Path, ...]) -> Safetensors:
    stored: dict[str, Stored] = {}
    maps: dict[Path, mmap.mmap] = {}
    twice = []
    for file in files:
        maps[file] = mapped(file)
        for one in _header(file, maps[file]):
            other = stored.setdefault(one.entry.name, one)
            if other is not one:
                found = f"`{one.entry.name}` is stored in `{other.file.name}` too"
                place = Place(str(file), one.entry.name)
                twice.append(error("checkpoint.duplicate", found, place))
    if twice:
        raise TopocError(*twice)
    return Safetensors(path, files, stored, maps)


def mapped(file: Path) -> mmap.mmap:
    """A read-only map of a file."""
    try:
        with file.open("rb") as stream:
            return mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ)
    except FileNotFoundError:
        found = "there is no checkpoint here"
        raise TopocError(error("checkpoint.missing-file", found, Place(str(file)))) from None
    except ValueError:
        raise _broken(file, "the file is empty") from None
    except OSError as problem:
        raise _broken(file, f"the file does not open: {problem.strerror}") from None


def _broken(file: Path, found: str, part: str = "", way: str = "") -> TopocError:
    return TopocError(error("checkpoint.unreadable", found, Place(str(file), part), help=way))


def _header(file: Path, data: mmap.mmap) -> list[Stored]:
    """The tensors of one file, each inside it, and together covering it exactly."""
    size = int.from_bytes(data[:8], "little")
    other = masquerade(data)
    if other:
        raise _broken(file, other[0], way=other[1])
    if len(data) < 8 or size > min(LARGEST_HEADER, len(data) - 8):
        found = f"the header claims {size} bytes and the file has {len(data)} in all"
        raise _broken(file, found, way="download the file again")
    try:
        header = json.loads(bytes(data[8 : 8 + size]), object_pairs_hook=once)
    except (ValueError, RecursionError) as problem:
        found = f"the header is not JSON: {str(problem).rstrip('.')}"
        raise _broken(file, found) from None
    if not isinstance(header, dict):
        raise _broken(file, "the header is not a JSON object")
    header.pop("__metadata__", None)
    found_tensors = [_stored(file, name, value, 8 + size) for name, value in header.items()]
    _cover(file, found_tensors, 8 + size, len(data))
    return found_tensors


def masquerade(data: mmap.mmap) -> tuple[str, str] | None:
    """What a file is instead of a checkpoint, if its first bytes say so, and what to do."""
    start = bytes(data[:64]).lstrip().lower()
    if start.startswith(b"version https://git-lfs"):
        return "the file is a Git LFS pointer and holds no weights", "fetch it with git lfs pull"
    if start.startswith((b"<!doctype", b"<html", b"<?xml")):
        return "the file is a web page and holds no weights", "download the file itself"
    if start.startswith((b"pk\x03\x04", b"\x80\x02")):
        return "the file is a pickle, which is never opened", "save it as safetensors"
    return None


def _stored(file: Path, name: str, value: object, base: int) -> Stored:
    found = value if isinstance(value, dict) else {}
    shape, dtype, offsets = found.get("shape"), found.get("dtype"), found.get("data_offsets")
    if not (isinstance(dtype, str) and dtype in BYTES):
        raise _broken(file, f"tensor `{name}` has the unknown type {str(dtype)[:20]}", name)
    if not (_naturals(shape) and _naturals(offsets)):
        raise _broken(file, f"tensor `{name}` has no shape or place", name)
    if len(shape) > MOST_AXES or len(offsets) != 2:
        raise _broken(file, f"tensor `{name}` has no shape or place", name)
    size = prod(shape) * BYTES[dtype]
    if offsets[1] - offsets[0] != size:
        found_size = offsets[1] - offsets[0]
        message = f"tensor `{name}` needs {size} bytes and is given {found_size}"
        raise _broken(file, message, name)
    return Stored(file, Entry(name=name, shape=tuple(shape), dtype=dtype), base + offsets[0])


def _naturals(value: object) -> TypeGuard[list[int]]:
    return isinstance(value, list) and all(type(one) is int and one >= 0 for one in value)


def _cover(file: Path, tensors: list[Stored], base: int, end: int) -> None:
    """Tensors follow one another without gap or overlap up to the last byte."""
    spans = sorted(
        (one.start, one.start + prod(one.entry.shape) * BYTES[one.entry.dtype], one.entry.name)
        for one in tensors
    )
    for (_, stop, name), (start, _, other) in pairwise([(0, base, "header"), *spans]):
        if stop != start:
            found = f"`{name}` ends at byte {stop} and `{other}` starts at {start}"
            raise _broken(file, found, other, "download the file again")
    declared = max((stop for _, stop, _ in spans), default=base)
    if declared != end:
        found = f"the tensors end at byte {declared} and the file has {end}"
        raise _broken(file, found, way="download the file again")


def _index(index: Path) -> tuple[dict[str, str], int | None]:
    """The index's table of tensors, and the size it claims."""
    found = load(index, "index", "checkpoint")
    table, metadata = found.get("weight_map"), found.get("metadata")
    if not isinstance(table, dict) or not all(isinstance(one, str) for one in table.values()):
        raise _broken(index, "the index has no table from tensors to files", "weight_map")
    for name in sorted(set(table.values())):
        if not _inside(name):
            message = f"the index names `{name[:80]}`, which is no file in its folder"
            raise _broken(index, message, name[:80])
    total = metadata.get("total_size") if isinstance(metadata, dict) else None
    return table, total if isinstance(total, int) else None


def _inside(name: str) -> bool:
    """Whether a name is a plain path down from its folder; where links lead is not asked."""
    parts = name.split("/")
    plain = all(part not in {"", ".", ".."} for part in parts)
    return plain and name.endswith(".safetensors") and not set(name) & set("\\:\0")


def _compare(index: Path, listed: Mapping[str, str], opened: Safetensors) -> None:
    """Every tensor must lie in the shard that the index says, and be listed."""
    problems = []
    for name, file in sorted(listed.items()):
        one = opened.stored.get(name)
        if one is None or one.file != index.parent / file:
            found = f"shard `{file}` lacks `{name}`, which the index lists there"
            place = Place(str(index), name)
            problems.append(error("checkpoint.missing", found, place))
    for name in sorted(opened.stored.keys() - listed.keys()):
        found = (
            f"shard `{opened.stored[name].file.name}` holds `{name}`, which the index never lists"
        )
        problems.append(error("checkpoint.extra", found, Place(str(index), name)))
    if problems:
        raise TopocError(*problems)
