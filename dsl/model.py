"""What a topology means: extends, parameters, ranges and defaults all resolved.

`Layers` is what the checkpoint says and is handed in; `Topology` is what the `.topo` file makes
of it. Both are plain data, so that lint and plan need neither torch nor coremltools.
"""

from enum import Enum
from pathlib import Path
from typing import Literal

from attrs import field, frozen

from topoc.dsl.plain import Plain
from topoc.dsl.source import Span

COREML_LLM = "coreml_llm"
"""The features profile of an existing device runtime."""


class Kind(Enum):
    """The attention that the checkpoint gives a layer."""

    SLIDING = "sliding"
    FULL = "full"


@frozen(kw_only=True, eq=False, repr=False)
class Layer(Plain):
    """One layer of the checkpoint."""

    kind: Kind
    window: int | None  # positions, this one included; None for full attention
    donor: int | None  # the layer whose KV this one reads; None where it owns its own
    kv_weights: bool  # whether the checkpoint holds K and V projections for it
    heads: int
    kv_heads: int
    head_dim: int
    parameters: int  # elements of all its weight matrices and gains
    mlp_width: int = 0  # 0 where it is not known


@frozen(kw_only=True, eq=False, repr=False)
class Layers(Plain):
    """The checkpoint's layer table, which selectors and defaults refer to."""

    family: str
    config: Path
    layers: tuple[Layer, ...]
    hidden: int
    vocabulary: int
    positions: int  # max_position_embeddings
    has_ple: bool = False
    head_parameters: int = 0
    embed_parameters: int = 0
    ple_parameters: int = 0  # the projection that the part `ple` computes with


class Write(Enum):
    """How one step's K and V enter a cache."""

    SHIFT = "shift"
    BLEND = "blend"
    APPEND = "append"
    SLICE = "slice"


class Store(Enum):
    """Where a cache lives between calls."""

    IO = "io"
    STATE = "state"


@frozen(kw_only=True, eq=False, repr=False)
class Attention(Plain):
    """The attention that the topology runs in one layer: a kind of the open set, with arguments."""

    kind: str  # sliding, full, windowed_full, flash_tiled
    window: int | None  # positions that a query sees; None for all
    tile: int | None = None
    span: Span | None = field(default=None, eq=False, repr=False)


@frozen(kw_only=True, eq=False, repr=False)
class Kv(Plain):
    """The KV cache of one layer. With a `donor` the layer owns none and the rest is unused."""

    donor: int | None = None
    write: Write = Write.APPEND
    slots: int = 0
    store: Store = Store.IO
    state: str | None = None  # the state's name, where several kinds share one
    padded: bool = False
    padded_heads: int | None = None
    span: Span | None = field(default=None, eq=False, repr=False)
    marks: tuple[tuple[str, Span], ...] = field(default=(), eq=False, repr=False)

    def at(self, clause: str) -> Span | None:
        """Where `source`, `write`, `slots`, `store` or `row` was set, if the text sets it."""
        return dict(self.marks).get(clause)


@frozen(kw_only=True, eq=False, repr=False)
class Block(Plain):
    """One decoder layer as the topology runs it."""

    index: int
    attention: Attention
    kv: Kv


@frozen(kw_only=True, eq=False, repr=False)
class Head(Plain):
    """What the head gives: `argmax`, `logits`, `topk` (of `k`) or `hidden`."""

    mode: str
    k: int | None = None
    split: int = 1


@frozen(kw_only=True, eq=False, repr=False)
class Part(Plain):
    """One part of a chunk: `embed`, `ple`, `layers` (both ends in), `norm` or `head`."""

    kind: str
    first: int = 0
    last: int = -1
    head: Head | None = None
    span: Span | None = field(default=None, eq=False, repr=False)


@frozen(kw_only=True, eq=False, repr=False)
class Chunk(Plain):
    """A run of parts that becomes one Core ML package."""

    name: str
    parts: tuple[Part, ...]
    unit: str | None = None
    span: Span | None = field(default=None, eq=False, repr=False)

    @property
    def layers(self) -> tuple[int, ...]:
        """The indices of its layers, in order."""
        return tuple(i for part in self.parts for i in range(part.first, part.last + 1))

    def has(self, kind: str) -> bool:
        """Whether a part of this kind is among its parts."""
        return any(part.kind == kind for part in self.parts)


Role = Literal["decode", "prefill", "verify"]


@frozen(kw_only=True, eq=False, repr=False)
class Function(Plain):
    """What every chunk of a list offers: `decode`, `prefill` or `verify`, of a number of tokens."""

    name: str  # decode, prefill_64, verify_3
    role: Role
    tokens: int
    write: str = "host"  # graph or host; decode follows each cache's own write
    separate: bool = False
    unit: str | None = None
    chunks: tuple[Chunk, ...] | None = None  # a chunk list of its own
    span: Span | None = field(default=None, eq=False, repr=False)


@frozen(kw_only=True, eq=False, repr=False)
class Scheme(Plain):
    """A compression scheme: `none`, `palettize`, `int8`, `int4`, `prune`, with its arguments."""

    name: str
    arguments: tuple[tuple[str, int | str], ...] = ()


@frozen(kw_only=True, eq=False, repr=False)
class Recipe(Plain):
    """Which scheme a tensor role of a layer gets; `layer` is None for tensors outside layers."""

    role: str
    layer: int | None
    schemes: tuple[Scheme, ...]
    span: Span | None = field(default=None, eq=False, repr=False)


@frozen(kw_only=True, eq=False, repr=False)
class Target(Plain):
    """The unit, the deployment target and the chip profile."""

    unit: str = "all"
    deployment: str = "ios18"
    chip: str | None = None


@frozen(kw_only=True, eq=False, repr=False)
class Budget(Plain):
    """One line of `expect`."""

    measure: str  # "layers per chunk", "kv io per step", …
    relation: str
    value: float  # in bytes, ms, a share of one, or plain
    span: Span = field(eq=False, repr=False)


@frozen(kw_only=True, eq=False, repr=False)
class Allowance(Plain):
    """An accepted lint finding and the reason."""

    code: str
    chunk: str | None
    reason: str
    span: Span = field(eq=False, repr=False)


@frozen(kw_only=True, eq=False, repr=False)
class Verdict(Plain):
    """What became of a topology: its status, since when, and the lines that argue it."""

    state: str = "prototype"
    date: str | None = None
    lines: tuple[
        tuple[str, str], ...
    ] = ()  # because, figure, under, …; `figure none` keeps its why
    span: Span | None = field(default=None, eq=False, repr=False)
    marks: tuple[tuple[str, Span], ...] = field(default=(), eq=False, repr=False)

    def line(self, key: str) -> str:
        """One of its lines, or nothing."""
        return dict(self.lines).get(key, "")

    def at(self, key: str) -> Span | None:
        """Where a line of it stands, if it has that line."""
        return dict(self.marks).get(key)


@frozen(kw_only=True, eq=False, repr=False)
class Measurement(Plain):
    """Figures from a device: `("chunk1", "decode")` 5.6 `ms`, `("placement", "chunk1")` 93 `%`."""

    date: str
    notes: tuple[tuple[str, str], ...] = ()  # device, under
    figures: tuple[tuple[tuple[str, ...], float, str], ...] = ()
    span: Span | None = field(default=None, eq=False, repr=False)


@frozen(kw_only=True, eq=False, repr=False)
class Topology(Plain):
    """A topology with nothing left to look up. Chunk lists are in dataflow order."""

    name: str
    doc: str
    status: str
    layers: Layers
    target: Target
    context: int
    features: str
    blocks: tuple[Block, ...]
    chunks: tuple[Chunk, ...]
    functions: tuple[Function, ...]
    recipes: tuple[Recipe, ...]
    taps: tuple[int, ...] = ()
    budgets: tuple[Budget, ...] = ()
    allowances: tuple[Allowance, ...] = ()
    verdict: Verdict = Verdict()
    measurements: tuple[Measurement, ...] = ()
    flat: str = field(
        default="", eq=False, repr=False
    )  # the flattened source, every default explicit
    span: Span | None = field(default=None, eq=False, repr=False)

    def chunks_of(self, function: Function) -> tuple[Chunk, ...]:
        """The chunk list of a function: its own, or the topology's."""
        return self.chunks if function.chunks is None else function.chunks

    def recipe(self, role: str, layer: int | None = None) -> tuple[Scheme, ...]:
        """The schemes of one tensor role; `none` is an empty tuple."""
        for recipe in self.recipes:
            if (recipe.role, recipe.layer) == (role, layer):
                return tuple(scheme for scheme in recipe.schemes if scheme.name != "none")
        return ()
