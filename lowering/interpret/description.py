"""A package says twice what it takes and gives; this holds one account against the other."""

from typing import Any

from topoc.dsl.diagnostic import Place
from topoc.lowering.interpret.blob import unreadable
from topoc.lowering.interpret.dtypes import FEATURE_DTYPES
from topoc.lowering.interpret.function import FLEXIBLE, Feature, Function


def check_description(description: Any, function: Function, place: Place) -> None:
    """Refuse a package whose description and function differ; the description is protobuf."""
    described = _described(description, function, place)
    for kind, listed, features in (
        ("input", described.input, function.inputs),
        ("output", described.output, function.outputs),
        ("state", described.state, function.states),
    ):
        names = [one.name for one in listed]
        if sorted(names) != sorted(one.name for one in features):
            taken = ", ".join(one.name for one in features)
            message = (
                f"the description lists the {kind}s {', '.join(names) or 'none'}, "
                f"and function `{function.name}` has {taken or 'none'}"
            )
            raise unreadable(place, message)
        by_name = {one.name: one for one in features}
        for one in listed:
            _check_feature(one, by_name[one.name], place)


def _described(description: Any, function: Function, place: Place) -> Any:
    if not description.functions:
        return description
    for one in description.functions:
        if one.name == function.name:
            return one
    raise unreadable(place, f"the description does not know function `{function.name}`")


def _check_feature(described: Any, feature: Feature, place: Place) -> None:
    kind = described.type
    array = kind.stateType.arrayType if kind.HasField("stateType") else kind.multiArrayType
    dtype = FEATURE_DTYPES.get(array.dataType, f"type {array.dataType}")
    shape = tuple(array.shape)
    # A scalar may be described as (1,), an output without a shape, a flexible size by an example.
    same = not shape or _fits(shape, feature.shape or (1,))
    if not same or dtype != feature.dtype:
        described_as = f"`{feature.name}` is described as {dtype} {shape}"
        message = f"feature {described_as}, and the function has {feature}"
        raise unreadable(place, message)


def _fits(shape: tuple[int, ...], declared: tuple[int, ...]) -> bool:
    return len(shape) == len(declared) and all(
        size in {one, FLEXIBLE} for one, size in zip(shape, declared, strict=True)
    )
