"""Attention."""

from typing import ClassVar

from attrs import frozen

from topoc.lowering.ir import Op, TensorType, Value


@frozen(eq=False, repr=False)
class Attention(Op):
    """softmax(scale * q k^T + mask) v, where query head h reads KV head h // (N / G).

    `q` is (1, N, T, D), `k` and `v` are (1, G, S, D), `mask` is (1, 1, T, S).
    """

    mnemonic: ClassVar[str] = "attention"
    q: Value
    k: Value
    v: Value
    mask: Value
    scale: float

    def result_type(self) -> TensorType:
        """The type of `q`."""
        return self.q.type


@frozen(eq=False, repr=False)
class TiledAttention(Op):
    """The same, walking the keys in static tiles of `tile` with an online softmax.

    The last tile may be shorter. At least one key is visible to each query; a tile of which none
    is visible changes nothing.
    """

    mnemonic: ClassVar[str] = "tiled_attention"
    q: Value
    k: Value
    v: Value
    mask: Value
    scale: float
    tile: int

    def result_type(self) -> TensorType:
        """The type of `q`."""
        return self.q.type
