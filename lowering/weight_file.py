"""The constants of a package on their way into its weight file, each once."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from attrs import define

from topoc.lowering.compress.parts import Compressed, Part
from topoc.lowering.emit.mil.records import Record
from topoc.lowering.emit.mil.var import Placed
from topoc.lowering.hashed import HashedFile
from topoc.lowering.ir import Weight
from topoc.lowering.package import ALIGNMENT, BlobWriter
from topoc.lowering.stored import Rounded


def _none(weight: Weight) -> Compressed:
    message = f"{weight.key} has a recipe, and nothing compresses it here"
    raise LookupError(message)


@define
class Constants:
    """The values of what a package places."""

    rounded: Rounded
    compressed: Callable[[Weight], Compressed] = _none
    _held: tuple[Weight, Compressed] | None = None  # the last one: its parts are asked for in turn

    def write(self, records: Sequence[Record], path: Path) -> str:
        """Write a weight file; gives its SHA-256."""
        with HashedFile(path) as file:
            blob = BlobWriter(file, len(records))
            for one in records:
                offset = blob.begin(one.dtype, one.bytes, one.count)
                assert offset == one.offset, f"{one.content} is at {offset}"  # noqa: S101
                self._append(one, file, path)
                written = file.tell() - offset - ALIGNMENT
                assert written == one.bytes, f"{one.content} has {written} bytes"  # noqa: S101
        return file.digest

    def values(self, placed: Placed) -> np.ndarray[Any, Any]:
        """The values of a constant of a few elements."""
        if placed.recipe is not None:
            return self._part(placed).array()
        values = self.rounded.values(placed.weight)
        return np.tile(values, 2) if placed.layout == "twice" else values

    def _append(self, record: Record, file: HashedFile, path: Path) -> None:
        content = record.content
        if not isinstance(content, Placed):
            file.write(np.ascontiguousarray(content).data)
        elif content.recipe is not None:
            file.write(self._part(content).data.data)
            self.rounded.told(record.bytes)
        else:
            for _ in range(record.bytes // content.weight.type.bytes):
                self.rounded.append_to(file, path, content.weight)

    def _part(self, placed: Placed) -> Part:
        if self._held is None or self._held[0] != placed.weight:
            self._held = (placed.weight, self.compressed(placed.weight))
        return self._held[1].parts[placed.part]
