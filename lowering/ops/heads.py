"""Between channels and heads."""

from typing import ClassVar

from attrs import frozen

from topoc.lowering.ir import Op, TensorType, Value


@frozen(eq=False, repr=False)
class SplitHeads(Op):
    """Channels into heads: (1, N * D, 1, T) to (1, N, D, T)."""

    mnemonic: ClassVar[str] = "split_heads"
    x: Value
    heads: int

    def result_type(self) -> TensorType:
        """Heads second, their width third."""
        one, channels, _, tokens = self.x.shape
        return TensorType(self.x.type.dtype, (one, self.heads, channels // self.heads, tokens))


@frozen(eq=False, repr=False)
class TokenRows(Op):
    """Widths into rows of tokens: (1, N, D, T) to (1, N, T, D), the layout of caches."""

    mnemonic: ClassVar[str] = "token_rows"
    x: Value

    def result_type(self) -> TensorType:
        """The last two axes swapped."""
        one, heads, width, tokens = self.x.shape
        return TensorType(self.x.type.dtype, (one, heads, tokens, width))


@frozen(eq=False, repr=False)
class MergeHeads(Op):
    """Heads back into channels: (1, N, T, D) to (1, N * D, 1, T)."""

    mnemonic: ClassVar[str] = "merge_heads"
    x: Value

    def result_type(self) -> TensorType:
        """Heads and width as channels."""
        one, heads, tokens, width = self.x.shape
        return TensorType(self.x.type.dtype, (one, heads * width, 1, tokens))


@frozen(eq=False, repr=False)
class JoinHeads(Op):
    """The inverse of `SplitHeads`: (1, N, D, T) to (1, N * D, 1, T)."""

    mnemonic: ClassVar[str] = "join_heads"
    x: Value

    def result_type(self) -> TensorType:
        """Heads and width as channels."""
        one, heads, width, tokens = self.x.shape
        return TensorType(self.x.type.dtype, (one, heads * width, 1, tokens))


@frozen(eq=False, repr=False)
class Channels(Op):
    """A run of channels: (1, C, 1, T) to (1, count, 1, T)."""

    mnemonic: ClassVar[str] = "channels"
    x: Value
    first: int
    count: int

    def result_type(self) -> TensorType:
        """As many channels as asked for."""
        one, _, height, tokens = self.x.shape
        return TensorType(self.x.type.dtype, (one, self.count, height, tokens))


@frozen(eq=False, repr=False)
class JoinChannels(Op):
    """Channels one after another: (1, C, 1, T) each to (1, sum of C, 1, T)."""

    mnemonic: ClassVar[str] = "join_channels"
    parts: tuple[Value, ...]

    def result_type(self) -> TensorType:
        """All channels."""
        one, _, height, tokens = self.parts[0].shape
        channels = sum(part.shape[1] for part in self.parts)
        return TensorType(self.parts[0].type.dtype, (one, channels, height, tokens))


@frozen(eq=False, repr=False)
class Rope(Op):
    """Turn each head by its position, in the half-split layout.

    `x` is (1, N, D, T); `cos` and `sin` are (1, 1, D, T), their two halves alike.
    """

    mnemonic: ClassVar[str] = "rope"
    x: Value
    cos: Value
    sin: Value

    def result_type(self) -> TensorType:
        """The type of `x`."""
        return self.x.type
