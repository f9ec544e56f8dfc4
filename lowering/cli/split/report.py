"""What `topoc split` tells, as JSON has it."""

from typing import TypedDict

from topoc.lowering.cli.milliseconds import Difference, Ms


class Figure(TypedDict):
    """What a device said of a decode step of a layout cut alike, in ms."""

    topology: str
    device: str
    low: float
    high: float
    alike: bool  # false where its KV or weights are others


class Split(TypedDict):
    """One split, its chunks by their numbers of layers."""

    name: str
    layers: list[int]
    step: Ms | None
    chunks: list[Ms] | None
    from_best: Difference | None
    kv_bytes: int
    largest_bytes: int  # fp16 weights of the largest chunk
    measured: list[Figure]


class Reason(TypedDict):
    """One finding against a split."""

    code: str
    message: str


class Layout(TypedDict):
    """A layout beside the file, as the topology under split would be cut like it."""

    name: str
    layers: list[int]
    step: Ms | None
    from_best: Difference | None
    measured: list[Figure]
    refused: list[Reason]


class Refused(TypedDict):
    """What a rule or budget refused: whole chunks, or splits one by one."""

    code: str
    chunks: int
    splits: int
    example: str


class Bound(TypedDict):
    """A budget of whole splits, and the least that any split comes to; null for numbers."""

    budget: str
    least: str | None


class Report(TypedDict):
    """The splits of one topology, the best first."""

    topology: str
    objective: str
    least: int
    most: int
    costs: str | None  # the device that the milliseconds come from
    splits: list[Split]
    layouts: list[Layout]
    refused: list[Refused]
    bounds: list[Bound]
