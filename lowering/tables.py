"""Host tables: embedding rows and rotary angles, raw on disk and described in the manifest."""

from pathlib import Path
from typing import Any

import numpy as np

from topoc.lowering.ir import DType, TensorType, Weight
from topoc.lowering.manifest import RopeTable, Table
from topoc.lowering.plan import Plan
from topoc.lowering.rope import table
from topoc.lowering.stored import Rounded

LEVELS = 127  # of a signed byte, on either side of zero


def embedding_bytes(plan: Plan) -> int:
    """The size of the embedding table before any compression; 0 where the graph embeds."""
    arch = plan.architecture
    return arch.vocabulary * arch.hidden * plan.dtype.bytes if plan.host_embeds else 0


def write_embedding(plan: Plan, rounded: Rounded, directory: Path) -> Table:
    """The token embedding as it is stored; int8 a row where the topology says so."""
    arch = plan.architecture
    schemes = plan.topology.recipe("embed")
    if schemes and plan.dtype is not DType.FP32:
        return _write_int8(plan, rounded, directory)
    kind = plan.dtype.float_name
    path = directory / f"embed.{kind}.bin"
    weight = Weight("embed", TensorType(plan.dtype, (arch.vocabulary, arch.hidden)))
    with path.open("w+b") as file:
        rounded.append_to(file, path, weight)
    return Table(
        path=path.name,
        dtype=kind,
        rows=arch.vocabulary,
        width=arch.hidden,
        multiplier=arch.embed_multiplier,
    )


def _write_int8(plan: Plan, rounded: Rounded, directory: Path) -> Table:
    """Each row divided by its greatest |value| / 127 and rounded; a row of zeros has scale one."""
    arch = plan.architecture
    path, scales = directory / "embed.int8.bin", directory / "embed.scale.bin"
    with path.open("wb") as file, scales.open("wb") as scale_file:
        for block in rounded.weights.blocks("embed"):
            peaks = block.abs().amax(1, keepdim=True)
            scale = (peaks / LEVELS).masked_fill(peaks == 0, 1.0)
            file.write((block / scale).round().char().numpy().data)
            scale_file.write(scale.numpy().data)
    rounded.told(Weight("embed", TensorType(plan.dtype, (arch.vocabulary, arch.hidden))))
    return Table(
        path=path.name,
        dtype="int8",
        rows=arch.vocabulary,
        width=arch.hidden,
        multiplier=arch.embed_multiplier,
        scales=scales.name,
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
