"""Structured sparsity: of every m weights along the inputs, the n least are not stored.

Measured on a Mac with coremltools 9 in the CoreML-LLM project (its session report on joint sparsity
of 2026-04-27): 2:4 with a 4-bit table made a package larger and slower. It is here to be tried.
"""

import numpy as np
import torch
from attrs import evolve, frozen

from topoc.lowering.compress.packing import Packer
from topoc.lowering.compress.palettize import palettize
from topoc.lowering.compress.parts import Compressed, Part, size_of
from topoc.lowering.compress.recipe import Prune
from topoc.lowering.compress.source import Source, codes, spans, unfit


@frozen
class Kept:
    """The weights of a source that are kept, closed up: a source with fewer columns."""

    source: Source
    how: Prune

    @property
    def name(self) -> str:
        """That of the source."""
        return self.source.name

    @property
    def shape(self) -> tuple[int, int]:
        """Output channels, and kept weights of each."""
        rows, columns = self.source.shape
        return rows, columns // self.how.m * (self.how.m - self.how.n)

    def rows(self, start: int, stop: int) -> torch.Tensor:
        """The kept weights of some rows, in their order."""
        rows = self.source.rows(start, stop)
        return rows[torch.from_numpy(self.mask(start, stop))].view(len(rows), -1)

    def mask(self, start: int, stop: int) -> np.ndarray:
        """Which weights of some rows are kept; of two alike the first one goes."""
        found = codes(self.source, start, stop)
        sizes = (found & np.uint16(0x7FFF)).reshape(-1, self.how.m)  # codes are ordered as sizes
        ranks = sizes.argsort(1, kind="stable").argsort(1, kind="stable")
        return (ranks >= self.how.n).reshape(found.shape)


def prune(source: Source, how: Prune) -> Compressed:
    """The constants of `constexpr_sparse_to_dense`: `mask` in uint1, and `nonzero_data` in fp16.

    With a table those of `constexpr_lut_to_sparse` before it: `indices_mask`,
    `indices_nonzero_data` and `lut`, which is fitted to the kept weights alone.
    """
    kept = Kept(source, how)
    mask = Part("uint1", source.shape, np.empty(size_of("uint1", source.shape), np.uint8))
    packer = Packer(mask.data, 1)
    for start, stop in spans(0, *source.shape):
        packer.append(kept.mask(start, stop).view(np.uint8))
    packer.finish()
    if how.then is None:
        return Compressed(how, source.shape[0], {"mask": mask, "nonzero_data": _dense(kept)})
    made = palettize(kept, how.then)
    indices = made.parts["indices"]
    flat = evolve(indices, shape=(indices.shape[0] * indices.shape[1],))
    tables = {name: one for name, one in made.parts.items() if name != "indices"}
    parts = {"indices_mask": mask, "indices_nonzero_data": flat, **tables}
    return Compressed(how, source.shape[0], parts)


def _dense(kept: Kept) -> Part:
    """The kept weights in fp16."""
    rows, columns = kept.shape
    values = np.empty((rows, columns), np.float16)
    for start, stop in spans(0, rows, columns):
        values[start:stop] = codes(kept, start, stop).view(np.float16)
        if not np.isfinite(values[start:stop]).all():
            raise unfit(kept.source, start, stop)
    return Part("fp16", (rows * columns,), values.reshape(-1).view(np.uint8))
