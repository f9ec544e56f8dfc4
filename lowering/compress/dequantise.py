"""What a compressed weight means: its numbers, as Core ML's ops are defined to make them."""

import numpy as np
from numpy.typing import NDArray

from topoc.lowering.compress.parts import Compressed
from topoc.lowering.compress.source import spans

Dense = NDArray[np.float16]


def dense(made: Compressed) -> Dense:
    """All rows, without those that pad the last group: [rows, columns]."""
    return np.concatenate([rows(made, *span) for span in spans(0, made.rows, made.columns)])


def rows(made: Compressed, start: int, stop: int) -> Dense:
    """Some rows: [stop - start, columns]."""
    if "data" in made.parts:
        return _scaled(made, start, stop)
    if "indices" in made.parts:
        indices = made.parts["indices"].rows(start, stop)
        return _looked_up(indices, tables(made), start, made.parts["indices"].shape[0])
    return _filled(made, start, stop)


def tables(made: Compressed) -> Dense:
    """The table of each group, as numbers: [groups, entries]."""
    entries = made.parts["lut"].array()[:, 0, :, 0]
    if "lut_scale" not in made.parts:
        return entries
    scales = made.parts["lut_scale"].array()[:, 0, 0].astype(np.float32)
    return (entries * scales).astype(np.float16)


def _looked_up(indices: NDArray[np.uint8], entries: Dense, start: int, height: int) -> Dense:
    """Each index in the table of its row, of a tensor so high."""
    each = height // len(entries)
    found = np.empty(indices.shape, np.float16)
    group = (start + np.arange(len(indices))) // each
    for one in np.unique(group):
        some = group == one
        found[some] = entries[one][indices[some]]
    return found


def _scaled(made: Compressed, start: int, stop: int) -> Dense:
    """Steps times the scale of their block; the product is exact in float32 and rounded once."""
    data, scale = made.parts["data"].rows(start, stop), made.parts["scale"]
    steps = scale.rows(start, stop) if scale.shape[0] > 1 else scale.array()
    wide = data.reshape(len(data), steps.shape[1], -1).astype(np.float32)
    wide *= steps.astype(np.float32)[..., None]
    return wide.astype(np.float16).reshape(data.shape)


def _filled(made: Compressed, start: int, stop: int) -> Dense:
    """Kept weights at their places, zeros elsewhere."""
    mask = made.parts["mask" if "mask" in made.parts else "indices_mask"].rows(start, stop) > 0
    each = int(mask[0].sum())
    if "nonzero_data" in made.parts:
        kept = made.parts["nonzero_data"].values(start * each, stop * each)
    else:
        indices = made.parts["indices_nonzero_data"].values(start * each, stop * each)
        kept = _looked_up(indices.reshape(-1, each), tables(made), start, made.rows).reshape(-1)
    found = np.zeros(mask.shape, np.float16)
    found[mask] = kept
    return found
