"""What a machine is given, held against what the function declares."""

from collections.abc import Mapping, Sequence

import numpy as np
import torch

from topoc.dsl.diagnostic import Diagnostic, Place, TopocError, error
from topoc.lowering.interpret.constants import COMPUTED
from topoc.lowering.interpret.function import Feature

Value = np.ndarray | torch.Tensor  # an array of any element type; which ones are taken is checked
FLOATS = ("float16", "float32")
TAKEN = {"fp16": FLOATS, "fp32": FLOATS, "int32": ("int32",), "bool": ("bool",)}


def accept(
    features: Sequence[Feature], given: Mapping[str, Value], place: Place, *, rounding: bool
) -> dict[str, torch.Tensor]:
    """The given values in the type they are computed with, or all that is wrong with them.

    A float feature takes fp16 and fp32 alike, so that outputs can be fed back as they are.
    """
    findings = list(_unmatched(features, given, place))
    for feature in features:
        if feature.name in given:
            findings.extend(_unlike(feature, given[feature.name], place))
    if findings:
        raise TopocError(*findings)
    return {one.name: _tensor(one, given[one.name], rounding=rounding) for one in features}


def no_value(name: str, place: Place) -> TopocError:
    """A probe or output that the function does not have."""
    return TopocError(error("bundle.feature", f"the function has no value named `{name}`", place))


def _unmatched(
    features: Sequence[Feature], given: Mapping[str, Value], place: Place
) -> list[Diagnostic]:
    names = {one.name for one in features}
    missing = [
        error("bundle.feature", f"`{one.name}` is missing; expected {one}", place)
        for one in features
        if one.name not in given
    ]
    return missing + [
        error("bundle.feature", f"`{name}` is given, and the function has no such feature", place)
        for name in given
        if name not in names
    ]


def _unlike(feature: Feature, value: Value, place: Place) -> list[Diagnostic]:
    dtype = str(value.dtype).removeprefix("torch.")
    if tuple(value.shape) == feature.shape and dtype in TAKEN.get(feature.dtype, ()):
        return []
    found = f"{dtype} {tuple(value.shape)}"
    return [error("bundle.feature", f"`{feature.name}` is {found}; expected {feature}", place)]


def _tensor(feature: Feature, value: Value, *, rounding: bool) -> torch.Tensor:
    if isinstance(value, np.ndarray):
        # Memory that may not be written to is copied, since torch warns of it.
        value = torch.from_numpy(value if value.flags.writeable else value.copy())
    tensor = value.detach().to(COMPUTED[feature.dtype])
    return tensor.half().float() if rounding and feature.dtype == "fp16" else tensor
