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
class StateRow(Op):
    """One layer of a state as it stands now: (R, G', S', D') to (1, G, S, D).

    `state` is the program's state or the result of the last write to it.
    """

    mnemonic: ClassVar[str] = "state_row"
    state: Value
    row: int
    heads: int
    slots: int
    width: int

    def result_type(self) -> TensorType:
        """One row, in the layer's own geometry."""
        shape = (1, self.heads, self.slots, self.width)
        return TensorType(self.state.type.dtype, shape)


@frozen(eq=False, repr=False)
class WriteState(Op):
    """Write `new` (N, G, T, D) into a state (R, G', S', D'), from row `row` and its first head on.

    It takes the slots from `index` (int32, (1,)) on, or from slot 0 where there is none. The
    result is the state after the write; what was read before it is stale.
    """

    mnemonic: ClassVar[str] = "write_state"
    state: Value
    new: Value
    row: int
    index: tuple[Value, ...] = ()

    def result_type(self) -> TensorType:
        """The type of the state."""
        return self.state.type


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
    """Drop the oldest slots and put the new rows last: (1, G, S, D) and (1, G, T, D).

    Of more new rows than slots, the last S stay.
    """

    mnemonic: ClassVar[str] = "shift_in"
    cache: Value
    new: Value

    def result_type(self) -> TensorType:
        """The type of the cache row."""
        return self.cache.type


@frozen(eq=False, repr=False)
class BlendIn(Op):
    """cache * (1 - taken) + slot new: `slot` (1, 1, S, T) has a one-hot column for each new row.

    A column of zeros stores nothing; `taken` is the sum of the columns.
    """

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
