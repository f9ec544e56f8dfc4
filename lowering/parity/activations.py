"""The scales of a bundle's quantised activations, held against those in its packages."""

from collections.abc import Iterator

import numpy as np

from topoc.dsl.diagnostic import Place, TopocError, error
from topoc.lowering.activations import calibrated, pairs
from topoc.lowering.architecture import read
from topoc.lowering.bundle.reader import Bundle
from topoc.lowering.interpret.constants import Constants
from topoc.lowering.interpret.function import Function, Op
from topoc.lowering.interpret.package import Package
from topoc.lowering.ir import Program
from topoc.lowering.parity.shipped import topology_of
from topoc.lowering.plan import plan
from topoc.lowering.rescale import Scales


def told(bundle: Bundle) -> dict[str, float]:
    """The scales that the manifest tells, by the role of the weight; empty without any."""
    said = bundle.manifest.quantization
    return {} if said is None or said.activations is None else dict(said.activations.scales)


def activation_scales(bundle: Bundle) -> dict[str, float]:
    """The same, once every package was seen to have them at the stream's power of two.

    Raises TopocError where one has other scales, or no ops that have any.
    """
    scales, manifest = told(bundle), bundle.manifest
    if not scales:
        return {}
    residual = Scales(residual=manifest.residual_scales)
    laid = plan(topology_of(bundle), read(bundle.path / "config.json"), scales=residual)
    programs = [(package, one) for package in laid.packages for one in package.programs]
    lacking = {role for _, one in programs for role, *_ in pairs(one)} - scales.keys()
    if lacking:
        words = f"the manifest tells no scale of what `{min(lacking)}` reads"
        raise _refusal(words, Place(bundle.manifest_path, "quantization.activations"))
    for package in calibrated(laid, scales).packages:
        opened = Package(bundle.path / package.path)
        for program in package.programs:
            _check(opened, opened.function(program.name), program)
    return scales


def _check(package: Package, function: Function, program: Program) -> None:
    makers = {one.name: op for op in function.ops for one in op.outputs}
    for role, result, scale in pairs(program):
        wanted = float(np.float16(scale))
        place = Place(str(package.model_path), f"{function.name}/{result.name}")
        found = [
            Constants(package, function).array(op.inputs["scale"][0], place).item()
            for op in _ops(makers, result.name)
        ]
        if found != [wanted, wanted]:
            words = f"what `{role}` reads is quantised by {found}, and the manifest tells {wanted}"
            raise _refusal(words, place)


def _ops(makers: dict[str, Op], name: str) -> Iterator[Op]:
    """The `dequantize` that makes a value, and the `quantize` before it."""
    for kind in ("dequantize", "quantize"):
        op = makers.get(name)
        if op is None or op.type != kind:
            return
        yield op
        name = str(op.inputs["input"][0])


def _refusal(words: str, place: Place) -> TopocError:
    return TopocError(error("verify.scale", words, place, help="compile the bundle again"))
