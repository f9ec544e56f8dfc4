"""Compressed weights to dense ones, in the data type they declare; the forms of opset CoreML8."""

from collections.abc import Callable, Mapping

import numpy as np
import torch

from topoc.dsl.diagnostic import Place
from topoc.lowering.interpret.blob import unreadable
from topoc.lowering.interpret.dtypes import Array

Decoder = Callable[[Mapping[str, Array], Place], Array | tuple[Array, ...]]
"""From the parts of an op to its results: an array, or one for each output."""


def lut_to_dense(parts: Mapping[str, Array], place: Place) -> Array:
    """Look every index up in its group's table; a table's entries may be vectors along one axis."""
    indices, tables = parts["indices"], parts["lut"]
    *groups, entries, width = tables.shape
    _check_blocks(indices.shape, groups, place)
    if indices.size and int(indices.max()) >= entries:
        raise unreadable(place, f"an index exceeds its table of {entries} entries")
    if width != 1:
        if "vector_axis" not in parts:
            raise unreadable(place, f"a table of {width}-vectors has no `vector_axis`")
        return _vectors(indices, tables, int(parts["vector_axis"]))
    dense = np.empty(indices.shape, tables.dtype)
    for group in np.ndindex(*groups):
        block = _block(group, groups, indices.shape)
        dense[block] = np.take(tables[group][:, 0], indices[block])
    return dense


def _vectors(indices: Array, tables: Array, axis: int) -> Array:
    *groups, _, width = tables.shape
    axis %= indices.ndim
    found = np.empty((*indices.shape, width), tables.dtype)
    for group in np.ndindex(*groups):
        block = _block(group, groups, indices.shape)
        found[block] = np.take(tables[group], indices[block], axis=0)
    shape = [size * (width if at == axis else 1) for at, size in enumerate(indices.shape)]
    return np.moveaxis(found, -1, axis + 1).reshape(shape)


def blockwise_shift_scale(parts: Mapping[str, Array], place: Place) -> Array:
    """Each block's values less its offset, times its scale, in the scale's own type."""
    data, scale = parts["data"], parts["scale"]
    _check_blocks(data.shape, scale.shape, place)
    spread = [
        value
        for whole, many in zip(data.shape, scale.shape, strict=True)
        for value in (many, whole // many)
    ]
    blocks = [value for many in scale.shape for value in (many, 1)]
    wide = data.astype(np.float32).reshape(spread)
    if "offset" in parts:
        wide -= parts["offset"].astype(np.float32).reshape(blocks)
        wide = _rounded(wide, scale.dtype).astype(np.float32)
    wide *= scale.astype(np.float32).reshape(blocks)
    return _rounded(wide.reshape(data.shape), scale.dtype)


def sparse_to_dense(parts: Mapping[str, Array], place: Place) -> Array:
    """The values at the places that the mask tells, in its order, and zeros elsewhere."""
    mask, kept = parts["mask"], parts["nonzero_data"]
    _check_count(mask, kept, place)
    dense = np.zeros(mask.shape, kept.dtype)
    dense[mask != 0] = kept
    return dense


def lut_to_sparse(parts: Mapping[str, Array], place: Place) -> tuple[Array, Array]:
    """The mask as it is, and each index looked up in the table of the group that it lies in."""
    mask, kept = parts["indices_mask"], parts["indices_nonzero_data"]
    _check_count(mask, kept, place)
    if parts["lut"].shape[-1] != 1:
        raise unreadable(place, "the tables of a sparse tensor have vectors, not numbers")
    indices = np.zeros(mask.shape, kept.dtype)
    indices[mask != 0] = kept
    dense = lut_to_dense({"indices": indices, "lut": parts["lut"]}, place)
    return mask, dense[mask != 0]


def _check_count(mask: Array, kept: Array, place: Place) -> None:
    ones = np.count_nonzero(mask)
    if kept.shape != (ones,):
        raise unreadable(place, f"a mask of {ones} ones has values of shape {kept.shape}")


def _rounded(wide: Array, dtype: np.dtype[np.generic]) -> Array:
    """The values in this float type; torch rounds as numpy does, at seven times the speed."""
    if dtype == np.float32:
        return wide
    narrow: Array = torch.from_numpy(wide).half().numpy()
    return narrow


def _check_blocks(
    shape: tuple[int, ...], groups: tuple[int, ...] | list[int], place: Place
) -> None:
    if len(shape) != len(groups) or any(
        many == 0 or whole % many for whole, many in zip(shape, groups, strict=True)
    ):
        raise unreadable(
            place, f"values of shape {shape} do not divide into {tuple(groups)} blocks"
        )


def _block(group: tuple[int, ...], groups: list[int], shape: tuple[int, ...]) -> tuple[slice, ...]:
    sizes = [whole // many for whole, many in zip(shape, groups, strict=True)]
    return tuple(slice(at * size, (at + 1) * size) for at, size in zip(group, sizes, strict=True))


DECODERS: dict[str, Decoder] = {
    "constexpr_lut_to_dense": lut_to_dense,
    "constexpr_blockwise_shift_scale": blockwise_shift_scale,
    "constexpr_sparse_to_dense": sparse_to_dense,
    "constexpr_lut_to_sparse": lut_to_sparse,
}
NEEDED = {
    "constexpr_lut_to_dense": ("indices", "lut"),
    "constexpr_blockwise_shift_scale": ("data", "scale"),
    "constexpr_sparse_to_dense": ("mask", "nonzero_data"),
    "constexpr_lut_to_sparse": ("indices_mask", "indices_nonzero_data", "lut"),
}
