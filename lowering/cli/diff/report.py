"""What `topoc diff` tells, as JSON has it."""

from typing import Literal, TypedDict

from topoc.lowering.cli.milliseconds import Difference, Ms


class Change(TypedDict):
    """One thing that differs; null on the side that has none."""

    what: str
    before: str | None
    after: str | None


class Changes(TypedDict):
    """What differs in the topologies, by subject."""

    settings: list[Change]
    chunks: list[Change]
    kv: list[Change]
    attention: list[Change]
    functions: list[Change]
    quantisation: list[Change]
    budgets: list[Change]
    verdict: list[Change]


class Chunk(TypedDict):
    """One chunk of a decode step: bytes, and ms where its chip was measured."""

    name: str
    layers: list[int]
    stored_bytes: int
    loaded_bytes: int
    kv_bytes_in: int
    kv_bytes_out: int
    ms: Ms | None


class Side(TypedDict):
    """One topology, chunk by chunk and as a whole decode step."""

    topology: str
    chunks: list[Chunk]
    kv_bytes: int
    stored_bytes: int
    step: Ms | None
    measured: list[str]


class Feature(TypedDict):
    """An input or output that was added, removed, or has another shape, type or meaning."""

    chunk: str
    function: str
    name: str
    change: Literal["added", "removed", "changed"]
    before: str | None
    after: str | None
    breaks_host: bool


class Report(TypedDict):
    """What differs between two topologies."""

    before: Side
    after: Side
    same: bool
    changes: Changes
    step: Difference | None  # of the decode step, in ms
    features: list[Feature] | None  # null where a program can't be built
    not_built: list[str]
