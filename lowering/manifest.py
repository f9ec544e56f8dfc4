"""The runtime manifest: all that a host needs to drive a bundle, as data.

A host never reads meaning from a name: features, buffers, packages and files are told by the
manifest and may be called anything. `docs/runtime.md` tells the rules in full.
"""

from typing import Literal

from attrs import field, frozen

from topoc.dsl.plain import Plain

SCHEMA = "topoc.bundle/1"

SlotRule = Literal["modulo", "shift"]
Keys = Literal["cache", "cache+call"]


@frozen(kw_only=True, eq=False, repr=False)
class File(Plain):
    """One file or package of the bundle; a package's hash is over its files in path order."""

    path: str
    bytes: int
    sha256: str


@frozen(kw_only=True, eq=False, repr=False)
class ModelInfo(Plain):
    """The model that the bundle computes."""

    family: str
    layers: int
    hidden: int
    vocabulary: int
    context: int
    bos: tuple[int, ...]
    eos: tuple[int, ...]
    config_sha256: str
    weights_sha256: str


@frozen(kw_only=True, eq=False, repr=False)
class Table(Plain):
    """Embedding rows on the host: raw little-endian values, one row a token.

    The embedding of a token is row * multiplier, or row * scale of the row * multiplier where
    `scales` names a file of one float32 a row.
    """

    path: str
    dtype: Literal["fp16", "fp32", "int8"]
    rows: int
    width: int
    multiplier: float
    scales: str | None = None


@frozen(kw_only=True, eq=False, repr=False)
class RopeTable(Plain):
    """A .npy file of cosines and sines, (2, positions, width)."""

    path: str
    positions: int
    width: int


@frozen(kw_only=True, eq=False, repr=False)
class Buffer(Plain):
    """One KV cache tensor, (rows of layers, KV heads, slots, width), kept by the host.

    With P tokens committed, position a < P stands in slot `a mod slots` (`modulo`) or
    `slots - P + a` (`shift`), as long as it is among the last `slots` of them.
    """

    id: str
    shape: tuple[int, int, int, int]
    dtype: Literal["fp16", "fp32"]
    holds: Literal["k", "v"]
    layers: tuple[int, ...]  # the layer of each row
    rule: SlotRule
    window: int | None
    initial: float = 0.0


@frozen(kw_only=True, eq=False, repr=False)
class Source(Plain):
    """Where an input feature comes from.

    kind         what the host feeds
    -----------  ---------------------------------------------------------------------------------
    tokens       the call's token ids, int32
    embedding    rows of `table` times its multiplier times `scale`, channels second: (1, H, 1, T)
    buffer       the buffer named by `name`
    value        the value `name` of an earlier step
    rope_cos     cosines of the call's positions from the rope table `name`, (1, 1, width, T)
    rope_sin     sines, likewise
    mask         0 where a key is visible and `fill` elsewhere, (1, 1, T, keys)
    slot         1 at the slot that the call's token takes, 0 elsewhere, (1, 1, slots, 1)
    last_row     1 at the call's last real row, 0 elsewhere, (1, 1, 1, T)
    """

    kind: Literal[
        "tokens", "embedding", "buffer", "value", "rope_cos", "rope_sin", "mask", "slot", "last_row"
    ]
    name: str | None = None  # a buffer, a value, a rope table or an embedding table
    scale: float = 1.0
    window: int | None = None  # mask
    slots: int | None = None  # mask, slot
    rule: SlotRule | None = None  # mask, slot
    keys: Keys | None = (
        None  # mask: the cache as the call leaves it, or before it and the call's own
    )
    fill: float | None = None  # mask


@frozen(kw_only=True, eq=False, repr=False)
class Sink(Plain):
    """Where an output feature goes.

    kind         what the host does
    -----------  ---------------------------------------------------------------------------------
    value        keeps it for a later step under `name`; it is `scale` times the true value
    buffer       replaces the buffer `name` by it
    rows         stores the call's real rows into the buffer `name` by its slot rule
    token        the next token, int32; `probe` names the logits inside the package
    logits       the logits of the last real row
    topk_ids     the ids of the best logits, with `topk_logits`
    topk_logits  their logits, best first
    hidden       the hidden state of the last real row after the final norm
    """

    kind: Literal["value", "buffer", "rows", "token", "logits", "topk_ids", "topk_logits", "hidden"]
    name: str | None = None
    scale: float = 1.0
    probe: str | None = None


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


@frozen(kw_only=True, eq=False, repr=False)
class Step(Plain):
    """One prediction: a function of a package, on a unit."""

    package: str
    function: str
    unit: str
    inputs: tuple[Input, ...]
    outputs: tuple[Output, ...]


@frozen(kw_only=True, eq=False, repr=False)
class Function(Plain):
    """A call that the host can make: its steps in order. `tokens` is T, the rows of a call."""

    name: str
    role: Literal["decode", "prefill", "verify"]
    tokens: int
    steps: tuple[Step, ...]


@frozen(kw_only=True, eq=False, repr=False)
class Allowed(Plain):
    """A finding that was accepted, and why."""

    code: str
    reason: str


@frozen(kw_only=True, eq=False, repr=False)
class Lint(Plain):
    """What the rules said before the compile: all that ran, by code, and what they left.

    Errors that nobody accepted would have stopped it.
    """

    ran: tuple[str, ...] = ()
    allowed: tuple[Allowed, ...] = ()
    warned: tuple[str, ...] = ()  # the codes of warnings that stood


@frozen(kw_only=True, eq=False, repr=False)
class Manifest(Plain):
    """A whole bundle."""

    schema: str
    build: str
    name: str
    status: str
    precision: Literal["fp16", "fp32"]
    toolchain: dict[str, str]
    target: dict[str, str]
    model: ModelInfo
    tables: dict[str, Table]
    ropes: dict[str, RopeTable]
    buffers: tuple[Buffer, ...]
    functions: tuple[Function, ...]
    tokenizer: tuple[str, ...]  # the tokenizer's files; empty where the checkpoint has none
    residual_scales: tuple[float, ...] = ()  # of each layer's input and of the final norm's
    residual_peaks: tuple[float, ...] = ()  # measured greatest |x| at the same places
    lint: Lint = field(factory=Lint)
    revisit: str | None = None  # the new evidence for which a verdict was set aside
    unproven: tuple[str, ...] = ()
    files: tuple[File, ...] = field(default=(), repr=False)
