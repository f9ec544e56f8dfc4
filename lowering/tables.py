"""What the host looks up: rows of tokens, rotary angles; raw on disk, told by the manifest."""

from math import prod
from pathlib import Path
from typing import Any, Literal

import numpy as np

from topoc.lowering.ir import DType, TensorType, Weight
from topoc.lowering.manifest import PerLayer, RopeTable, Table
from topoc.lowering.plan import Plan
from topoc.lowering.rope import table
from topoc.lowering.stored import Rounded

LEVELS = 127  # of a signed byte, on either side of zero


def table_bytes(plan: Plan, name: str) -> int:
    """The size of a host table before any compression."""
    return prod(plan.table_shape(name)) * plan.dtype.bytes


def write_table(plan: Plan, rounded: Rounded, directory: Path, name: str) -> Table:
    """The table `embed` or `ple_table` as it is stored; int8 a row where the topology says so.

    Rows are streamed in blocks. Of a table that is longer than the vocabulary, the rows that no
    token has are left out.
    """
    kind: Literal["fp16", "fp32", "int8"] = plan.dtype.float_name
    if plan.topology.recipe(name) and plan.dtype is not DType.FP32:
        kind = "int8"
    rows, width = plan.table_shape(name)
    longer = rows < rounded.weights.spec(name).shape[0]
    weight = Weight(name, TensorType(plan.dtype, (rows, width)), first=0 if longer else None)
    path, scales = directory / f"{name}.{kind}.bin", directory / f"{name}.scale.bin"
    if kind == "int8":
        _write_int8(rounded, weight, path, scales)
    else:
        with path.open("w+b") as file:
            rounded.append_to(file, path, weight)
    return Table(
        path=path.name,
        dtype=kind,
        rows=rows,
        width=width,
        multiplier=_multiplier(plan, name),
        scales=scales.name if kind == "int8" else None,
    )


def _multiplier(plan: Plan, name: str) -> float:
    """What each row of a table is multiplied by, in the model."""
    per_layer = plan.architecture.per_layer
    if name == "ple_table" and per_layer is not None:
        return per_layer.row_multiplier
    return plan.architecture.embed_multiplier


def _write_int8(rounded: Rounded, weight: Weight, path: Path, scales: Path) -> None:
    """Each row divided by its greatest |value| / 127 and rounded; a row of zeros has scale one."""
    run = (0, weight.type.shape[0])
    with path.open("wb") as file, scales.open("wb") as scale_file:
        for block in rounded.weights.blocks(weight.role, run=run):
            peaks = block.abs().amax(1, keepdim=True)
            scale = (peaks / LEVELS).masked_fill(peaks == 0, 1.0)
            file.write((block / scale).round().char().numpy().data)
            scale_file.write(scale.numpy().data)
    rounded.told(weight.type.bytes)


def per_layer_bytes(plan: Plan) -> int:
    """The size of what the host combines per-layer vectors with; 0 where packages make them."""
    return sum(one.type.bytes for one in plan.combining)


def write_per_layer(plan: Plan, rounded: Rounded, directory: Path) -> PerLayer | None:
    """The weights that the host makes per-layer vectors with; None where packages make them."""
    spec = plan.architecture.per_layer
    if spec is None or not plan.host_combines:
        return None
    paths = []
    for weight in plan.combining:
        path = directory / f"{weight.role}.{plan.dtype.float_name}.bin"
        with path.open("w+b") as file:
            rounded.append_to(file, path, weight)
        paths.append(path.name)
    return PerLayer(
        embedding="embed",
        rows="ple_table",
        projection=paths[0],
        gain=paths[1],
        dtype=plan.dtype.float_name,
        layers=len(plan.architecture.layers),
        width=spec.width,
        eps=plan.architecture.norms.eps,
        projection_factor=spec.projection_factor,
        combined_factor=spec.combined_factor,
    )


def write_ropes(plan: Plan, directory: Path) -> dict[str, RopeTable]:
    """Cosines and sines of every position of the context, one file a geometry."""
    kind = np.float32 if plan.dtype is DType.FP32 else np.float16
    written = {}
    for name in plan.rope_names:
        angles = table(plan.architecture.rope(name), plan.topology.context, kind)
        path = directory / f"rope_{name}.npy"
        _save(path, angles)
        written[name] = RopeTable(path=path.name, positions=angles.shape[1], width=angles.shape[2])
    return written


def _save(path: Path, values: np.ndarray[Any, Any]) -> None:
    """As `np.save`, which writes behind Python's back and does not tell when a disk is full."""
    with path.open("wb") as file:
        header = np.lib.format.header_data_from_array_1_0(values)
        np.lib.format.write_array_header_1_0(file, header)
        file.write(np.ascontiguousarray(values).data)
