"""The runtime manifest: all that a host needs to drive a bundle, as data.

A host never reads meaning from a name: features, buffers, packages and files are told by the
manifest and may be called anything. `docs/runtime.md` tells the rules in full.
"""

from typing import Literal

from attrs import field, frozen

from topoc.dsl.plain import Plain
from topoc.lowering.manifest.buffers import Buffer, Row, SlotRule
from topoc.lowering.manifest.calls import Copy, Function, Step
from topoc.lowering.manifest.ports import Input, Keys, Layout, Output, Sink, Source
from topoc.lowering.manifest.quantization import Activations, Quantization, Tensor
from topoc.lowering.manifest.tables import PerLayer, RopeTable, Table

SCHEMA = "topoc.bundle/1"


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
    per_layer: PerLayer | None = None
    residual_scales: tuple[float, ...] = ()  # of each layer's input and of the final norm's
    residual_peaks: tuple[float, ...] = ()  # measured greatest |x| at the same places
    quantization: Quantization | None = None  # None where everything is whole
    lint: Lint = field(factory=Lint)
    revisit: str | None = None  # the new evidence for which a verdict was set aside
    unproven: tuple[str, ...] = ()
    files: tuple[File, ...] = field(default=(), repr=False)


__all__ = [
    "SCHEMA",
    "Activations",
    "Allowed",
    "Buffer",
    "Copy",
    "File",
    "Function",
    "Input",
    "Keys",
    "Layout",
    "Lint",
    "Manifest",
    "ModelInfo",
    "Output",
    "PerLayer",
    "Quantization",
    "RopeTable",
    "Row",
    "Sink",
    "SlotRule",
    "Source",
    "Step",
    "Table",
    "Tensor",
]
