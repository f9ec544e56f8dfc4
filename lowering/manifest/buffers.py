"""The KV caches of a bundle."""

from typing import Literal

from attrs import frozen

from topoc.dsl.plain import Plain

SlotRule = Literal["modulo", "shift"]


@frozen(kw_only=True, eq=False, repr=False)
class Row(Plain):
    """One row of a buffer: the keys or the values of one layer.

    With P tokens committed, position a < P stands in slot `a mod slots` (`modulo`) or
    `slots - P + a` (`shift`), as long as it is among the last `slots` of them. In a buffer that is
    longer, has more heads or is wider than the layer needs, the layer has the first of each.
    """

    layer: int
    holds: Literal["k", "v"]
    heads: int
    slots: int
    width: int
    rule: SlotRule
    window: int | None


@frozen(kw_only=True, eq=False, repr=False)
class Buffer(Plain):
    """One KV cache tensor, (rows, KV heads, slots, width).

    The host keeps it and feeds it (`io`), or the packages hold it themselves (`state`): then each
    package that a step names has its own copy, and `Function.copies` tells when to bring it over.
    """

    id: str
    shape: tuple[int, int, int, int]
    dtype: Literal["fp16", "fp32"]
    store: Literal["io", "state"]
    rows: tuple[Row, ...]
    initial: float = 0.0
