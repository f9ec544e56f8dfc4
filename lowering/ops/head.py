"""From hidden states to tokens."""

from typing import ClassVar

from attrs import frozen

from topoc.lowering.ir import DType, Op, TensorType, Value


@frozen(eq=False, repr=False)
class SelectToken(Op):
    """The column of one token: (1, H, 1, T) by a one-hot (1, 1, 1, T) to (1, H, 1, 1)."""

    mnemonic: ClassVar[str] = "select_token"
    x: Value
    selector: Value

    def result_type(self) -> TensorType:
        """One token."""
        return TensorType(self.x.type.dtype, (*self.x.shape[:3], 1))


@frozen(eq=False, repr=False)
class Argmax(Op):
    """The index of the greatest channel: (1, V, 1, T) to int32 (1, 1, 1, T)."""

    mnemonic: ClassVar[str] = "argmax"
    x: Value

    def result_type(self) -> TensorType:
        """One index a token."""
        return TensorType(DType.INT32, (1, 1, 1, self.x.shape[3]))


@frozen(eq=False, repr=False)
class TopK(Op):
    """The k greatest channels, best first: (1, V, 1, T) to logits and int32 ids (1, k, 1, T)."""

    mnemonic: ClassVar[str] = "topk"
    x: Value
    k: int

    def result_types(self) -> tuple[TensorType, ...]:
        """Logits, then ids."""
        shape = (1, self.k, 1, self.x.shape[3])
        return TensorType(self.x.type.dtype, shape), TensorType(DType.INT32, shape)
