"""The constants that a recipe makes of a matrix: known by its shape, before a weight is read."""

from math import prod

from topoc.lowering.compress.recipe import Linear, Palettize, Prune, Recipe

Constant = tuple[str, tuple[int, ...]]
"""MIL's name of an element type, and a shape."""

WIDTHS = {"fp16": 16, "int8": 8, "int4": 4, **{f"uint{bits}": bits for bits in (1, 2, 3, 4, 6, 8)}}


def constants(how: Recipe, shape: tuple[int, ...]) -> dict[str, Constant]:
    """The parts of a compressed matrix [outputs, inputs], by the names of the ops' parameters."""
    if isinstance(how, Palettize):
        return _palettized(how, shape)
    return _linear(how, shape) if isinstance(how, Linear) else _pruned(how, shape)


def bits(constant: Constant) -> int:
    """The size of a constant in bits; it ends at a whole byte."""
    dtype, shape = constant
    return prod(shape) * WIDTHS[dtype]


def size(constant: Constant) -> int:
    """The size of a constant in bytes."""
    return -(-bits(constant) // 8)


def height(how: Recipe, rows: int) -> int:
    """The rows of what the constants decompress to: those of whole groups."""
    each = how.group if isinstance(how, Palettize) and how.group else 1
    return -(-rows // each) * each


def at_rank(shape: tuple[int, ...], rank: int) -> tuple[int, ...]:
    """A constant's shape where the weight has axes of one behind its two: a convolution's."""
    if len(shape) < 2:
        return shape
    return (*shape[:2], *[1] * (rank - 2), *shape[2:])


def _palettized(how: Palettize, shape: tuple[int, ...]) -> dict[str, Constant]:
    rows, columns = shape
    groups = height(how, rows) // (how.group or rows)
    parts: dict[str, Constant] = {
        "indices": (f"uint{how.bits}", (height(how, rows), columns)),
        "lut": (how.lut, (groups, 1, 1 << how.bits, 1)),
    }
    return parts if how.lut == "fp16" else parts | {"lut_scale": ("fp16", (groups, 1, 1, 1))}


def _linear(how: Linear, shape: tuple[int, ...]) -> dict[str, Constant]:
    rows, columns = shape
    scales = {"channel": (rows, 1), "tensor": (1, 1)}
    scale = scales.get(how.per) or (rows, columns // how.block)
    return {"data": (f"int{how.bits}", shape), "scale": ("fp16", scale)}


def _pruned(how: Prune, shape: tuple[int, ...]) -> dict[str, Constant]:
    rows, columns = shape
    kept = rows * (columns // how.m * (how.m - how.n))
    if how.then is None:
        return {"mask": ("uint1", shape), "nonzero_data": ("fp16", (kept,))}
    tables = _palettized(how.then, (rows, kept // rows))
    dtype, _ = tables.pop("indices")
    return {"indices_mask": ("uint1", shape), "indices_nonzero_data": (dtype, (kept,)), **tables}
