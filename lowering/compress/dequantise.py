"""What a compressed weight means: its numbers, as Core ML's ops are defined to make them."""

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from topoc.lowering.compress.parts import BITS, Compressed, Part
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
        indices = made.parts["indices"]
        return _looked_up(indices, tables(made), start, stop)
    return _filled(made, start, stop)


def tables(made: Compressed) -> Dense:
    """The table of each group, as numbers: [groups, entries]."""
    entries = made.parts["lut"].array()[:, 0, :, 0]
    if "lut_scale" not in made.parts:
        return entries
    scales = made.parts["lut_scale"].array()[:, 0, 0].astype(np.float32)
    return (entries * scales).astype(np.float16)


def _looked_up(indices: Part, entries: Dense, start: int, stop: int) -> Dense:
    """Each index in the table of its row: [stop - start, columns].

    Where bytes hold whole indices of one row, a byte is looked up at once.
    """
    height, columns = indices.shape
    per = 8 // BITS.get(indices.dtype, 8)  # indices in a byte
    if per == 1 or 8 % BITS[indices.dtype] or columns % per:
        return _entries(indices.rows(start, stop), entries, start, height)
    each = columns // per
    packed = indices.data[start * each : stop * each].reshape(-1, each)
    shifts = BITS[indices.dtype] * np.arange(per)
    places = np.arange(256)[:, None] >> shifts & (1 << BITS[indices.dtype]) - 1
    found = np.empty(packed.shape, f"V{2 * per}")
    for group, some in _groups(start, stop, height // len(entries)):
        table = entries[group][places.reshape(-1)].view(found.dtype)
        np.take(table, packed[some], out=found[some], mode="clip")
    return found.view(np.float16)


def _entries(indices: NDArray[np.uint8], entries: Dense, start: int, height: int) -> Dense:
    """Each index in the table of its row, of a tensor so high."""
    found = np.empty(indices.shape, np.float16)
    for group, some in _groups(start, start + len(indices), height // len(entries)):
        np.take(entries[group], indices[some], out=found[some], mode="clip")
    return found


def _groups(start: int, stop: int, each: int) -> Iterator[tuple[int, slice]]:
    """The groups that some rows are of, and which of the rows are theirs."""
    for group in range(start // each, -(-stop // each)):
        yield group, slice(max(group * each - start, 0), (group + 1) * each - start)


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
        kept = _entries(indices.reshape(-1, each), tables(made), start, made.rows).reshape(-1)
    found = np.zeros(mask.shape, np.float16)
    found[mask] = kept
    return found
