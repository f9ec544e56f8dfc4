"""Projections."""

from typing import ClassVar

from attrs import frozen

from topoc.lowering.ir import Op, TensorType, Value, Weight


@frozen(eq=False, repr=False)
class Linear(Op):
    """Project the channels: (1, I, 1, T) by a weight (O, I) to (1, O, 1, T)."""

    mnemonic: ClassVar[str] = "linear"
    x: Value
    weight: Weight

    def result_type(self) -> TensorType:
        """Channels become the rows of the weight."""
        one, _, height, tokens = self.x.shape
        return TensorType(self.x.type.dtype, (one, self.weight.type.shape[0], height, tokens))


@frozen(eq=False, repr=False)
class Embed(Op):
    """Look up rows of a table: token ids (1, T) and a table (V, H) to (1, H, 1, T)."""

    mnemonic: ClassVar[str] = "embed"
    tokens: Value
    table: Weight

    def result_type(self) -> TensorType:
        """One column of channels a token."""
        return TensorType(
            self.table.type.dtype, (1, self.table.type.shape[1], 1, self.tokens.shape[1])
        )
