"""Reading and writing KV caches, whose layout is (rows of layers, KV heads, slots, width)."""

from typing import ClassVar

from attrs import frozen

from topoc.lowering.ir import Op, TensorType, Value


@frozen(eq=False, repr=False)
class CacheRow(Op):
    """One layer of a cache: (R, G', S, D') to (1, G, S, D), without the padding of a padded row."""

    mnemonic: ClassVar[str] = "cache_row"
    cache: Value
    row: int
    heads: int
    width: int

    def result_type(self) -> TensorType:
        """One row, in the layer's own geometry."""
        return TensorType(self.cache.type.dtype, (1, self.heads, self.cache.shape[2], self.width))


@frozen(eq=False, repr=False)
class PadRow(Op):
    """Zeros after the heads and after the width: (1, G, S, D) to (1, heads, S, width)."""

    mnemonic: ClassVar[str] = "pad_row"
    x: Value
    heads: int
    width: int

    def result_type(self) -> TensorType:
        """The geometry of the cache."""
        return TensorType(self.x.type.dtype, (1, self.heads, self.x.shape[2], self.width))


@frozen(eq=False, repr=False)
class ShiftIn(Op):
    """Drop the oldest slot and put one new row last: (1, G, S, D) and (1, G, 1, D)."""

    mnemonic: ClassVar[str] = "shift_in"
    cache: Value
    new: Value

    def result_type(self) -> TensorType:
        """The type of the cache row."""
        return self.cache.type


@frozen(eq=False, repr=False)
class BlendIn(Op):
    """cache * (1 - slot) + new * slot, with `slot` a one-hot column (1, 1, S, 1)."""

    mnemonic: ClassVar[str] = "blend_in"
    cache: Value
    new: Value
    slot: Value

    def result_type(self) -> TensorType:
        """The type of the cache row."""
        return self.cache.type


@frozen(eq=False, repr=False)
class AppendRows(Op):
    """The cache followed by the call's own rows: (1, G, S, D) and (1, G, T, D)."""

    mnemonic: ClassVar[str] = "append_rows"
    cache: Value
    new: Value

    def result_type(self) -> TensorType:
        """S + T slots."""
        one, heads, slots, width = self.cache.shape
        return TensorType(self.cache.type.dtype, (one, heads, slots + self.new.shape[2], width))


@frozen(eq=False, repr=False)
class StackRows(Op):
    """Rows of several layers as one tensor: (1, G, S, D) each to (R, G, S, D)."""

    mnemonic: ClassVar[str] = "stack_rows"
    rows: tuple[Value, ...]

    def result_type(self) -> TensorType:
        """As many rows as values."""
        return TensorType(self.rows[0].type.dtype, (len(self.rows), *self.rows[0].shape[1:]))
