"""Palettization: for each group of output channels a table, for each weight its nearest entry."""

import numpy as np

from topoc.lowering.compress.batch import Batch, Fitted, Groups
from topoc.lowering.compress.importance import Importance
from topoc.lowering.compress.packing import Packer
from topoc.lowering.compress.parts import Compressed, Part, part, size_of
from topoc.lowering.compress.recipe import Palettize
from topoc.lowering.compress.source import Source


def palettize(source: Source, how: Palettize, importance: Importance | None = None) -> Compressed:
    """The constants of `constexpr_lut_to_dense`.

    `indices` are [rows, columns] and `lut` [groups, 1, 2^bits, 1], in fp16. A ragged last group has
    a table fitted to the rows there are; `indices` then has as many more rows as the op needs, of
    the entry nearest to zero. With `lut = int8` the table is in steps, and `lut_scale`
    [groups, 1, 1, 1] makes numbers of them.
    """
    rows, columns = source.shape
    groups = Groups(rows, columns, how.group or rows)
    shape = (groups.count * groups.each, columns)
    dtype = f"uint{how.bits}"
    indices = Part(dtype, shape, np.empty(size_of(dtype, shape), np.uint8))
    packer = Packer(indices.data, how.bits)
    fitted = []
    for some in groups.batches():
        batch = Batch(source, groups, some, importance)
        fitted.append(batch.fitted(how))
        for block in batch.indices(fitted[-1]):
            packer.append(block)
    nearest = int(np.abs(fitted[-1].entries[-1]).argmin())
    packer.append(np.full((shape[0] - rows) * columns, nearest, np.uint8))
    packer.finish()
    return Compressed(how, rows, {"indices": indices, **_tables(fitted, how)})


def _tables(fitted: list[Fitted], how: Palettize) -> dict[str, Part]:
    """The tables of all batches, one behind the other."""
    if how.lut == "fp16":
        entries = np.concatenate([one.entries for one in fitted])
        return {"lut": part("fp16", entries[:, None, :, None])}
    steps = np.concatenate([one.steps for one in fitted])
    scales = np.concatenate([one.scales for one in fitted])
    return {
        "lut": part("int8", steps[:, None, :, None]),
        "lut_scale": part("fp16", scales[:, None, None, None]),
    }
