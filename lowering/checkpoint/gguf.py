"""GGUF files, mapped; the gguf package turns blocks of rows into numbers."""

import mmap
from collections.abc import Mapping
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
from attrs import field, frozen

from topoc.lowering.checkpoint.gguf_header import Stored, Value, read
from topoc.lowering.checkpoint.reader import Entry
from topoc.lowering.checkpoint.safetensors import mapped

if TYPE_CHECKING:
    import torch

# The types that the gguf package turns back into numbers.
DTYPES = frozenset({
    "F32", "F16", "BF16", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q2_K", "Q3_K", "Q4_K", "Q5_K",
    "Q6_K", "TQ1_0", "TQ2_0", "MXFP4", "NVFP4", "IQ2_XXS", "IQ2_XS", "IQ2_S", "IQ3_XXS", "IQ3_S",
    "IQ1_S", "IQ1_M", "IQ4_NL", "IQ4_XS",
})  # fmt: skip


@frozen
class Gguf:
    """An open GGUF checkpoint; the map lives as long as it does."""

    path: Path
    metadata: Mapping[str, Value] = field(repr=False)
    stored: Mapping[str, Stored] = field(repr=False)
    data: mmap.mmap = field(repr=False, eq=False)

    @property
    def files(self) -> tuple[Path, ...]:
        """The one file."""
        return (self.path,)

    @property
    def entries(self) -> Mapping[str, Entry]:
        """The tensors by their stored names."""
        return {name: one.entry for name, one in self.stored.items()}

    def rows(self, name: str, start: int, stop: int) -> "torch.Tensor":
        """Rows of the slowest axis as float32; a vector is rows of one."""
        one = self.stored[name]
        shape = one.entry.shape
        if len(shape) == 1:  # quantised blocks may run along it
            whole = self._numbers(one, one.start, one.stop, 1)
            return whole.reshape(-1)[start:stop].clone()
        width = (one.stop - one.start) // shape[0]
        begin, end = one.start + start * width, one.start + stop * width
        values = self._numbers(one, begin, end, (stop - start) * prod(shape[1:-1]))
        return values.reshape(stop - start, *shape[1:])

    def _numbers(self, one: Stored, begin: int, end: int, rows: int) -> "torch.Tensor":
        import torch
        from gguf.constants import GGMLQuantizationType
        from gguf.quants import dequantize

        raw = np.frombuffer(self.data, np.uint8, end - begin, begin).reshape(rows, -1)
        values: npt.NDArray[np.float32] = dequantize(raw, GGMLQuantizationType(one.kind))
        # float32 comes back as a view of the map, which must not be handed out
        return torch.from_numpy(values if values.flags.writeable else values.copy())


def open_file(path: Path) -> Gguf:
    """A GGUF file."""
    data = mapped(path)
    metadata, stored = read(path, data)
    return Gguf(path, metadata, stored, data)
