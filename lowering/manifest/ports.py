"""The features of a package's function: what the host feeds, and what it does with the results."""

from typing import Literal

from attrs import frozen

from topoc.dsl.plain import Plain
from topoc.lowering.manifest.buffers import SlotRule

Keys = Literal["cache", "cache+call"]
Layout = Literal["channels", "tokens"]


@frozen(kw_only=True, eq=False, repr=False)
class Source(Plain):
    """Where an input feature comes from.

    Shapes are those of the layout `channels`. In `tokens`, (1, C, 1, T) is (1, T, C) and rotary
    rows are (1, 1, T, width).

    kind         what the host feeds
    -----------  ---------------------------------------------------------------------------------
    tokens       the call's token ids, int32
    embedding    rows of the table `name` times its multiplier times `scale`: (1, width, 1, T)
    per_layer    per-layer vectors of the tokens, all layers' one after another, that the host
                 combines as the manifest's `per_layer` says, times `scale`:
                 (1, layers * width, 1, T)
    buffer       the buffer named by `name`, as it was before the call or as an earlier step left it
    state        nothing: the package holds the buffer `name` itself
    value        the value `name` of an earlier step
    rope_cos     cosines of the call's positions from the rope table `name`, (1, 1, width, T)
    rope_sin     sines, likewise
    mask         0 where a key is visible and `fill` elsewhere, (1, 1, T, keys)
    slot         a column for each row of the call: 1 at the slot that its token takes, 0 elsewhere
                 and throughout for a padding row, (1, 1, slots, T)
    index        the slot that the call's first token takes, int32, (1,)
    last_row     1 at the call's last real row, 0 elsewhere, (1, 1, 1, T)
    """

    kind: Literal[
        "tokens", "embedding", "per_layer", "buffer", "state", "value",
        "rope_cos", "rope_sin", "mask", "slot", "index", "last_row",
    ]  # fmt: skip
    name: str | None = None  # a buffer, a value, a rope table or an embedding table
    scale: float = 1.0
    window: int | None = None  # mask
    slots: int | None = None  # mask, slot, index
    rule: SlotRule | None = None  # mask, slot, index
    keys: Keys | None = None  # mask: the cache as the call leaves it, or before it and the call's
    fill: float | None = None  # mask
    layout: Layout = "channels"


@frozen(kw_only=True, eq=False, repr=False)
class Sink(Plain):
    """Where an output feature goes.

    kind         what the host does
    -----------  ---------------------------------------------------------------------------------
    value        keeps it for a later step under `name`; it is `scale` times the true value
    buffer       replaces rows of the buffer `name` by it, from `row` on:
                 (rows, heads, slots, width)
    rows         stores the call's real rows into rows of the buffer `name`, from `row` on, by their
                 slot rule: (rows, heads, T, width), the buffer's heads and width or the rows' own
    token        the next token, int32; `probe` names the logits inside the package
    logits       the logits of the last real row
    topk_ids     the ids of the best logits, with `topk_logits`
    topk_logits  their logits, best first
    hidden       the hidden state of the last real row after the final norm
    token_logit  the logit of the next token
    tap          the residual stream after layer `layer`, (1, H, 1, T); `scale` times the true value

    Of a verify, token to hidden hold all rows of the call. In the layout `tokens`, (1, C, 1, T) is
    (1, T, C), and a token and its logit are (1,), or (1, T) of a verify.
    """

    kind: Literal[
        "value", "buffer", "rows", "token", "token_logit",
        "logits", "topk_ids", "topk_logits", "hidden", "tap",
    ]  # fmt: skip
    name: str | None = None
    row: int = 0  # buffer, rows
    layer: int | None = None  # tap
    scale: float = 1.0
    probe: str | None = None
    layout: Layout = "channels"


@frozen(kw_only=True, eq=False, repr=False)
class Input(Plain):
    """An input feature of a package's function."""

    feature: str
    shape: tuple[int, ...]
    dtype: Literal["fp16", "fp32", "int32"]
    source: Source


@frozen(kw_only=True, eq=False, repr=False)
class Output(Plain):
    """An output feature of a package's function."""

    feature: str
    shape: tuple[int, ...]
    dtype: Literal["fp16", "fp32", "int32"]
    sink: Sink
