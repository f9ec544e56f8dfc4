"""What the host looks up: rows of tokens, rotary angles; raw on disk, told by the manifest."""

from collections.abc import Sequence
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from topoc.lowering.architecture import Rope
from topoc.lowering.checkpoint.weights import Weights
from topoc.lowering.features.storage import LEVELS, AngleFiles, RowFiles, angle_files, row_files
from topoc.lowering.ir import TensorType, Weight
from topoc.lowering.manifest import PerLayer, RopeTable, Table
from topoc.lowering.plan import Plan
from topoc.lowering.reuse import Reuse
from topoc.lowering.rope import angles
from topoc.lowering.stored import Rounded
from topoc.lowering.threads import one_thread

if TYPE_CHECKING:
    import torch

LEAST_FP16 = 2.0**-24  # above zero
ROPE_BLOCK = 4096  # positions


def table_bytes(plan: Plan, name: str) -> int:
    """The size of a host table before any compression."""
    return prod(plan.table_shape(name)) * plan.dtype.bytes


def write_table(
    plan: Plan, rounded: Rounded, directory: Path, name: str, reuse: Reuse | None = None
) -> Table:
    """The table `embed` or `ple_table` as it is stored.

    Rows are streamed in blocks, unless a compile before kept the files. Of a table that is longer
    than the vocabulary, the rows that no token has are left out.
    """
    files = row_files(plan.topology, plan.dtype, name)
    weight = _rows(plan, rounded.weights, name)
    _write_rows(rounded, weight, files, directory, reuse or Reuse(""))
    rows, width = weight.type.shape
    return Table(
        path=files.path,
        dtype=files.dtype,
        rows=rows,
        width=width,
        multiplier=_multiplier(plan, name),
        scales=files.scales,
        scales_dtype=files.scales_dtype,
        divisor=files.divisor,
    )


def kept_files(plan: Plan, weights: Weights, name: str, reuse: Reuse) -> list[str]:
    """What the cache calls the files of a table, whether it has them or not."""
    files = row_files(plan.topology, plan.dtype, name)
    return reuse.names(*_decided(_rows(plan, weights, name), files))


def _rows(plan: Plan, weights: Weights, name: str) -> Weight:
    """The rows that tokens have."""
    shape = plan.table_shape(name)
    longer = shape[0] < weights.spec(name).shape[0]
    return Weight(name, TensorType(plan.dtype, shape), first=0 if longer else None)


def _decided(weight: Weight, files: RowFiles) -> tuple[tuple[Path, ...], object]:
    """The files of a table, and all that decides on them beside the checkpoint."""
    paths = (files.path,) if files.scales is None else (files.path, files.scales)
    return tuple(map(Path, paths)), (weight.key, weight.type.shape, files)


def _multiplier(plan: Plan, name: str) -> float:
    """What each row of a table is multiplied by, in the model."""
    per_layer = plan.architecture.per_layer
    if name == "ple_table" and per_layer is not None:
        return per_layer.row_multiplier
    return plan.architecture.embed_multiplier


def _write_rows(
    rounded: Rounded, weight: Weight, files: RowFiles, directory: Path, reuse: Reuse
) -> None:
    """Rows as they are, which packages may copy, or coded, with the files of their scales."""
    names, decides = _decided(weight, files)
    path, *scales = paths = [directory / name for name in names]
    if scales:
        reuse.files(paths, decides, lambda: _write_int8(rounded, weight, files, *paths))
        rounded.told(weight.type.bytes)
        return

    def write() -> None:
        with path.open("w+b") as file:
            rounded.append_to(file, path, weight)

    reuse.files(paths, decides, write)
    rounded.stands(path, weight)


@one_thread()
def _write_int8(
    rounded: Rounded, weight: Weight, files: RowFiles, path: Path, scales: Path
) -> None:
    """Each row's codes and its scale."""
    narrow = files.scales_dtype == "fp16"
    coded = _coded_by_peak if narrow else _coded_by_step
    run = (0, weight.type.shape[0])
    with path.open("wb") as file, scales.open("wb") as scale_file:
        for block in rounded.weights.blocks(weight.role, fp16=narrow, run=run):
            codes, scale = coded(block)
            file.write(codes.numpy().data)
            scale_file.write(scale.numpy().data)


def _coded_by_step(block: "torch.Tensor") -> "tuple[torch.Tensor, torch.Tensor]":
    """Each row divided by its greatest |value| / 127 and rounded; a row of zeros has scale one."""
    peaks = _peaks(block)
    scale = (peaks / LEVELS).masked_fill(peaks == 0, 1.0)
    return (block / scale).round_().char(), scale


def _coded_by_peak(block: "torch.Tensor") -> "tuple[torch.Tensor, torch.Tensor]":
    """Each row in 127ths of its greatest |value|, which is rounded to fp16 first.

    Where fp16 has zero for it, the least that it has above: codes of such a row are small, and
    nothing is divided by zero.
    """
    scale = _peaks(block).half().clamp(min=LEAST_FP16)
    codes = (block * LEVELS).div_(scale.float()).round_().clamp_(-LEVELS, LEVELS)
    return codes.char(), scale


def _peaks(block: "torch.Tensor") -> "torch.Tensor":
    """The greatest |value| of each row: (rows, 1)."""
    import torch

    return torch.maximum(block.amax(1, keepdim=True), -block.amin(1, keepdim=True))


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
    """Cosines and sines of positions, for each geometry."""
    written = {}
    for name in plan.rope_names:
        files = angle_files(plan.topology, plan.dtype, name)
        rope = plan.architecture.rope(name)
        halves: dict[str, tuple[np.ufunc, ...]] = {files.path: (np.cos, np.sin)}
        if files.sines is not None:
            halves = {files.path: (np.cos,), files.sines: (np.sin,)}
        for path, of in halves.items():
            _write_angles(directory / path, rope, files, of)
        written[name] = RopeTable(
            path=files.path, positions=files.positions, width=rope.width, sines=files.sines
        )
    return written


def _write_angles(path: Path, rope: Rope, files: AngleFiles, of: Sequence[np.ufunc]) -> None:
    """A .npy file of (positions, width), or of several of them one after another.

    `np.save` writes behind Python's back and does not tell when a disk is full.
    """
    kind = np.dtype({"fp16": "<f2", "fp32": "<f4"}[files.dtype])
    one = (files.positions, rope.width)
    shape = one if len(of) == 1 else (len(of), *one)
    header = {"descr": kind.str, "fortran_order": False, "shape": shape}
    with path.open("wb") as file:
        np.lib.format.write_array_header_1_0(file, header)
        for function in of:
            for first in range(0, files.positions, ROPE_BLOCK):
                block = angles(rope, range(first, min(first + ROPE_BLOCK, files.positions)))
                file.write(function(block).astype(kind).data)
