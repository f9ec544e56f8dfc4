"""A feature's shape and element type against those that its meaning asks for."""

from collections.abc import Iterator

from topoc.lowering.bundle.scope import Problem
from topoc.lowering.manifest import Input, Layout, Output

Shape = tuple[int, ...]


def channels(layout: Layout, count: int, tokens: int) -> Shape:
    """The shape of `count` channels for each token."""
    return (1, count, 1, tokens) if layout == "channels" else (1, tokens, count)


def angles(layout: Layout, width: int, tokens: int) -> Shape:
    """The shape of rotary rows."""
    return (1, 1, width, tokens) if layout == "channels" else (1, 1, tokens, width)


def numbers(layout: Layout, rows: int, *, each: bool) -> Shape:
    """The shape of one number a row; `each` where a call tells of all its rows."""
    if layout == "channels":
        return 1, 1, 1, rows
    return (1, rows) if each else (1,)


def agree(one: Input | Output, shape: Shape, dtype: str | None = None) -> Iterator[Problem]:
    """Where they differ; without a `dtype` any float type is meant."""
    if one.shape != shape:
        message = f"`{one.feature}` is {one.shape} and {shape} is meant"
        yield Problem("bundle.shapes-disagree", message, ".shape")
    if one.dtype != dtype and (dtype is not None or one.dtype == "int32"):
        message = f"`{one.feature}` is {one.dtype} and {dtype or 'fp16 or fp32'} is meant"
        yield Problem("bundle.shapes-disagree", message, ".dtype")
