"""Weight files: 64-byte records with their data behind them, mapped into memory."""

import mmap
import struct
from pathlib import Path

import numpy as np

from topoc.dsl.diagnostic import Place, TopocError, error
from topoc.lowering.interpret.dtypes import Array, Dtype, packed_bytes, unpack

ALIGNMENT = 64
VERSION = 2
SENTINEL = 0xDEADBEEF
FILE_HEADER = struct.Struct("<II56x")
RECORD = struct.Struct("<IIQQQ32x")


def unreadable(place: Place, message: str, way: str = "") -> TopocError:
    """A package that is not what it says, or says what is not known."""
    help_ = way or "copy it anew from where it was made, or compile or convert it again"
    return TopocError(error("bundle.unreadable-package", message, place, help=help_))


class BlobFile:
    """One weight file. What is read from it are views of the map, never written to."""

    def __init__(self, path: Path) -> None:
        place = Place(str(path))
        if not path.is_file():
            raise unreadable(place, "the weight file is not there")
        if path.stat().st_size < FILE_HEADER.size:
            raise unreadable(
                place, f"the weight file is shorter than its {FILE_HEADER.size} byte header"
            )
        with path.open("rb") as file:
            # Copy-on-write, because numpy and torch warn of memory they may not write to.
            self._map = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
        _, version = FILE_HEADER.unpack_from(self._map)
        if version != VERSION:
            raise unreadable(
                place, f"the weight file has version {version}, and {VERSION} is known"
            )
        self.path = path

    def read(self, offset: int, dtype: Dtype, count: int, place: Place) -> Array:
        """The values of the record at this offset, which must be of this type and number."""
        start, size = self._record(offset, dtype, count, place)
        raw = np.frombuffer(self._map, np.uint8, size, start)
        return unpack(raw, dtype, count)

    def _record(self, offset: int, dtype: Dtype, count: int, place: Place) -> tuple[int, int]:
        at = f"the record at byte {offset} of {self.path.name}"
        if offset % ALIGNMENT or offset + RECORD.size > len(self._map):
            raise unreadable(
                place, f"{at} is not inside the file, or not at a multiple of {ALIGNMENT}"
            )
        sentinel, code, size, start, padding = RECORD.unpack_from(self._map, offset)
        if sentinel != SENTINEL:
            raise unreadable(
                place, f"{at} starts with {sentinel:#010x} instead of {SENTINEL:#010x}"
            )
        if code != dtype.code:
            raise unreadable(
                place, f"{at} has data type {code}, and `{dtype.name}` is {dtype.code}"
            )
        expected = packed_bytes(dtype, count)
        if size != expected:
            raise unreadable(
                place, f"{at} has {size} bytes, and the declared type needs {expected}"
            )
        if dtype.bits < 8 and padding != expected * 8 - count * dtype.bits:
            raise unreadable(
                place, f"{at} has {padding} padding bits, which its type does not need"
            )
        if start % ALIGNMENT or start < offset + RECORD.size or start + size > len(self._map):
            raise unreadable(place, f"{at} has its data outside the file, or at an odd place")
        return start, size
