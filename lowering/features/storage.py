"""How the tables are called and stored that a host reads rows of, by the profile of features.

What the runtime of CoreML-LLM maps from disk: conversion/build_gemma4_bundle.py and
Sources/CoreMLLLM/EmbeddingLookup.swift as of 2026-05-06 (72178c6).
"""

from typing import Literal

from attrs import frozen

from topoc.dsl.model import COREML_LLM, Topology
from topoc.dsl.plain import Plain
from topoc.lowering.ir import DType

LEVELS = 127  # of a signed byte, on either side of zero
LEAST_POSITIONS = 4096  # of the runtime's rotary tables
ITEM_BYTES = {"fp16": 2, "fp32": 4, "int8": 1}
HF_MODEL = "hf_model"  # the folder in which the runtime looks for a tokenizer

_NPY_HEADER = 128  # bytes, of two or three axes
_STEMS = {"embed": "embed_tokens", "ple_table": "embed_tokens_per_layer"}


@frozen(kw_only=True, eq=False, repr=False)
class RowFiles(Plain):
    """A table of a row a token: raw values and, where they are int8, a file of a scale a row.

    A scale is the step of the row's codes; with a `divisor`, that many steps.
    """

    path: str
    dtype: Literal["fp16", "fp32", "int8"]
    scales: str | None = None
    scales_dtype: Literal["fp16", "fp32"] = "fp32"
    divisor: float = 1.0

    def bytes_of(self, rows: int, width: int) -> int:
        """Both files."""
        scale = 0 if self.scales is None else ITEM_BYTES[self.scales_dtype]
        return rows * (width * ITEM_BYTES[self.dtype] + scale)


@frozen(kw_only=True, eq=False, repr=False)
class AngleFiles(Plain):
    """Cosines and sines of positions, in one .npy file or in two."""

    path: str
    dtype: Literal["fp16", "fp32"]
    positions: int
    sines: str | None = None

    def bytes_of(self, width: int) -> int:
        """All files, with their headers."""
        headers = _NPY_HEADER * (1 if self.sines is None else 2)
        return headers + 2 * self.positions * width * ITEM_BYTES[self.dtype]


def is_for_runtime(topology: Topology, dtype: DType) -> bool:
    """Whether the bundle is laid out for the runtime of CoreML-LLM, which reads fp16 and int8.

    A build in fp32 is there to be compared with, and keeps its tables in fp32.
    """
    return topology.features == COREML_LLM and dtype is not DType.FP32


def row_files(topology: Topology, dtype: DType, name: str) -> RowFiles:
    """The table `embed` or `ple_table`; int8 a row where the topology says so.

    Where the graph looks embeddings up itself, the host's copy, of which it makes per-layer
    vectors, is as exact as the graph's: both are one embedding.
    """
    if is_for_runtime(topology, dtype):
        stem = _STEMS[name]
        return RowFiles(
            path=f"{stem}_q8.bin",
            dtype="int8",
            scales=f"{stem}_scales.bin",
            scales_dtype="fp16",
            divisor=float(LEVELS),
        )
    in_graph = name == "embed" and any(chunk.has("embed") for chunk in topology.chunks)
    if topology.recipe(name) and dtype is not DType.FP32 and not in_graph:
        return RowFiles(path=f"{name}.int8.bin", dtype="int8", scales=f"{name}.scale.bin")
    return RowFiles(path=f"{name}.{dtype.float_name}.bin", dtype=dtype.float_name)


def angle_files(topology: Topology, dtype: DType, name: str) -> AngleFiles:
    """The rotary table of a geometry, of every position of the context."""
    if is_for_runtime(topology, dtype):
        return AngleFiles(
            path=f"cos_{name}.npy",
            sines=f"sin_{name}.npy",
            dtype="fp16",
            positions=max(2 * topology.context, LEAST_POSITIONS),
        )
    return AngleFiles(path=f"rope_{name}.npy", dtype=dtype.float_name, positions=topology.context)
