"""The compressed weights of a bundle as numbers, read back from its packages."""

import re
from collections.abc import Iterator, Mapping

import numpy as np
import torch

from topoc.dsl.diagnostic import Place, TopocError, error
from topoc.dsl.load import load
from topoc.dsl.model import Topology
from topoc.lowering.architecture import read
from topoc.lowering.bundle.reader import Bundle
from topoc.lowering.interpret.constants import Constants
from topoc.lowering.interpret.function import Function, Op
from topoc.lowering.interpret.package import Package
from topoc.lowering.ir import Program, Value, Weight
from topoc.lowering.ops.linear import Linear
from topoc.lowering.plan import plan

KEY = re.compile(r"(?P<role>[\w.]+?)(\[(?P<first>\d+):\d+\])?( \* (?P<factor>[\d.e+-]+))?")

Run = tuple[str, int]
"""A role, and the first of the rows."""


def topology_of(bundle: Bundle) -> Topology:
    """The topology that a bundle was compiled from, which lies in it."""
    topology, findings = load(bundle.path / "topology.topo")
    if topology is None:
        raise TopocError(*findings)
    return topology


def shipped(bundle: Bundle) -> dict[str, torch.Tensor]:
    """Each compressed weight by role as its package decompresses it, (O, I) in float32.

    A factor that the compile put on a weight to stay inside fp16 is taken out again.
    """
    factors = dict(_factors(bundle))
    found: dict[Run, torch.Tensor] = {}
    if not factors:
        return {}
    laid = plan(topology_of(bundle), read(bundle.path / "config.json"))
    for package in laid.packages:
        opened = Package(bundle.path / package.path)
        for program in package.programs:
            for result, weight in _projections(program):
                at = weight.role, weight.first or 0
                if at in factors and at not in found:
                    held = _held(opened, opened.function(program.name), result, weight)
                    found[at] = held / factors[at]
    if lacking := factors.keys() - found.keys():
        role, _ = min(lacking)
        words = f"no package of `{bundle.path.name}` holds the compressed weight `{role}`"
        place = Place(bundle.manifest_path, "quantization")
        raise TopocError(error("verify.no-weight", words, place, help="compile the bundle again"))
    return joined(found)


def _factors(bundle: Bundle) -> Iterator[tuple[Run, float]]:
    """What each compressed weight was multiplied by."""
    quantization = bundle.manifest.quantization
    for one in () if quantization is None else quantization.tensors:
        key = KEY.fullmatch(one.weight)
        if key is None:
            words = f"`{one.weight}` names no weight"
            place = Place(bundle.manifest_path, "quantization.tensors")
            way = "compile the bundle again"
            raise TopocError(error("bundle.manifest", words, place, help=way))
        yield (key["role"], int(key["first"] or 0)), float(key["factor"] or 1.0)


def _projections(program: Program) -> Iterator[tuple[Value, Weight]]:
    for binding in program.bindings:
        if isinstance(binding.op, Linear):
            yield binding.result, binding.op.weight


def _held(package: Package, function: Function, result: Value, weight: Weight) -> torch.Tensor:
    """The weight of the convolution that makes a result, without the rows that pad a group."""
    makers = {one.name: op for op in function.ops for one in op.outputs}
    place = Place(str(package.model_path), f"{function.name}/{result.name}")
    convolution = _convolution(makers, result.name)
    if convolution is None:
        words = f"`{result.name}` is not made by the convolution that was planned"
        raise TopocError(error("verify.no-weight", words, place, help="compile the bundle again"))
    array = Constants(package, function).array(convolution.inputs["weight"][0], place)
    rows, columns = weight.type.shape
    matrix = np.ascontiguousarray(array[:rows].reshape(rows, columns))
    return torch.from_numpy(matrix).float()


def _convolution(makers: Mapping[str, Op], name: str) -> Op | None:
    """The convolution behind a value, which may be cut off a longer one."""
    made = makers.get(name)
    if made is not None and made.type == "slice_by_size":
        made = makers.get(str(made.inputs["x"][0]))
    return made if made is not None and made.type == "conv" else None


def joined(found: Mapping[Run, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Runs of rows put together."""
    runs: dict[str, list[torch.Tensor]] = {}
    for (role, _), one in sorted(found.items(), key=lambda item: item[0]):
        runs.setdefault(role, []).append(one)
    return {role: many[0] if len(many) == 1 else torch.cat(many) for role, many in runs.items()}
