"""What `topoc plan` tells, as JSON has it.

Dictionaries and not classes of attrs, whose methods are written and compiled at each import: the
start of this command is a budget.
"""

from typing import Literal, TypedDict

from topoc.lowering.cli.milliseconds import Ms


class Feature(TypedDict):
    """An input or output of a function, and where the host takes it from or to."""

    name: str
    shape: list[int]
    dtype: Literal["fp16", "fp32", "int32"]
    bytes: int
    kind: str  # of the manifest's source or sink
    of: str | None  # a buffer, value or table


class Function(TypedDict):
    """One function of a chunk; the KV bytes and ms are those of one call."""

    name: str
    unit: str
    stored_bytes: int  # of the weights that it reads, which functions of a chunk share
    loaded_bytes: int
    ms: Ms | None  # null where its unit and chip were not measured
    kv_bytes_in: int
    kv_bytes_out: int
    inputs: list[Feature]
    outputs: list[Feature]


class Chunk(TypedDict):
    """One package: its weights as the file holds them, and as a device does."""

    name: str
    layers: list[int]
    parts: list[str]
    stored_bytes: int
    loaded_bytes: int
    functions: list[Function]


class Call(TypedDict):
    """A call that the host makes, through all its chunks."""

    name: str
    tokens: int
    kv_bytes_in: int
    kv_bytes_out: int
    ms: Ms | None
    tokens_per_second: float | None


class Row(TypedDict):
    """The keys or the values of one layer in a cache, in the layer's own geometry."""

    layer: int
    holds: Literal["k", "v"]
    heads: int
    slots: int
    width: int
    rule: Literal["modulo", "shift"]
    window: int | None


class Cache(TypedDict):
    """A KV cache, (rows, KV heads, slots, width), that the host keeps or the package's state."""

    id: str
    shape: list[int]
    dtype: Literal["fp16", "fp32"]
    bytes: int
    store: Literal["io", "state"]
    rows: list[Row]


class Table(TypedDict):
    """A table of the host; `bytes` is all its files together."""

    name: str
    shape: list[int]
    dtype: Literal["fp16", "fp32", "int8"]
    bytes: int


class Budget(TypedDict):
    """A line of `expect` at its tightest chunk; no value where only later stages can tell."""

    measure: str
    relation: Literal["<", "<=", ">", ">=", "=="]
    limit: float
    chunk: str | None
    value: float | None
    headroom: float | None


class Compressed(TypedDict):
    """One compressed weight of a bundle; no ratio where nothing was lost."""

    weight: str
    scheme: str
    bytes: int
    sqnr: float | None  # signal to error, in dB
    output_error: float | None  # part of the output's power, on text that was kept back


class Layer(TypedDict):
    """The compressed weights of a layer, or those outside layers."""

    layer: int | None
    bytes: int
    sqnr: float | None  # of the worst weight
    output_error: float | None  # the mean over its weights


class Target(TypedDict):
    """What the topology is planned for."""

    unit: str
    deployment: str
    chip: str | None


class Report(TypedDict):
    """What a topology becomes, before any weight is read."""

    topology: str
    doc: str
    status: str
    target: Target
    family: str
    hidden: int
    context: int
    chunks: list[Chunk]
    calls: list[Call]
    caches: list[Cache]
    tables: list[Table]
    budgets: list[Budget]
    costs: str | None  # the device whose figures the ms rest on
    layers: list[Layer]  # of a bundle, the worst first
    compressed: list[Compressed]  # of a bundle, the worst first
    download_bytes: int  # packages' weights and host tables
