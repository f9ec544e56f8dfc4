"""Between our layout of features and one that a host fixes."""

from typing import ClassVar

from attrs import frozen

from topoc.lowering.ir import Op, TensorType, Value


@frozen(eq=False, repr=False)
class FromTokens(Op):
    """Tokens first into channels first: (1, T, C) to (1, C, 1, T)."""

    mnemonic: ClassVar[str] = "from_tokens"
    x: Value

    def result_type(self) -> TensorType:
        """The layout of the residual stream."""
        one, tokens, channels = self.x.shape
        return TensorType(self.x.type.dtype, (one, channels, 1, tokens))


@frozen(eq=False, repr=False)
class ToTokens(Op):
    """Channels first into tokens first: (1, C, 1, T) to (1, T, C)."""

    mnemonic: ClassVar[str] = "to_tokens"
    x: Value

    def result_type(self) -> TensorType:
        """A row of channels a token."""
        one, channels, _, tokens = self.x.shape
        return TensorType(self.x.type.dtype, (one, tokens, channels))


@frozen(eq=False, repr=False)
class View(Op):
    """The same elements in another shape."""

    mnemonic: ClassVar[str] = "view"
    x: Value
    shape: tuple[int, ...]

    def result_type(self) -> TensorType:
        """The shape asked for."""
        return TensorType(self.x.type.dtype, self.shape)


@frozen(eq=False, repr=False)
class Greatest(Op):
    """The greatest channel of each token: (1, C, 1, T) to (1, 1, 1, T)."""

    mnemonic: ClassVar[str] = "greatest"
    x: Value

    def result_type(self) -> TensorType:
        """One value a token."""
        one, _, height, tokens = self.x.shape
        return TensorType(self.x.type.dtype, (one, 1, height, tokens))


@frozen(eq=False, repr=False)
class Keep(Op):
    """Takes an input in that nothing reads, for a host that feeds it by name."""

    mnemonic: ClassVar[str] = "keep"
    x: Value

    def result_type(self) -> TensorType:
        """The type of `x`."""
        return self.x.type
