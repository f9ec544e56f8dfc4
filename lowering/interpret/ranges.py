"""How far a checkpoint's residual stream swings, measured layer by layer."""

from collections.abc import Iterator

import torch

from topoc.lowering.architecture import Architecture
from topoc.lowering.interpret.walk import Tensors, Visit, Walk
from topoc.lowering.rescale import BRANCHES, Range, Swing
from topoc.lowering.threads import one_thread


def measure(architecture: Architecture, tensors: Tensors, tokens: list[int]) -> tuple[Range, ...]:
    """The ranges of each layer and of the final norm, over one pass of the tokens in float32."""
    with one_thread():
        return tuple(_ranges(architecture, Walk(architecture, tensors, [tokens])))


def _ranges(architecture: Architecture, walk: Walk) -> Iterator[Range]:
    for visit in walk.visits():
        if visit.layer is not None:
            yield Range(
                stream=_stream(visit),
                left=_peak(visit.values["out"]),
                branches=_branches(architecture, visit.values),
            )
    yield Range(stream=_swing(visit.before), left=_peak(visit.before))


def _stream(visit: Visit) -> Swing:
    """The stream wherever a layer reads it: before attention, before the MLP, before the gate."""
    values = visit.values
    swing = _swing(visit.before).joined(_swing(values["attended"]))
    return swing.joined(_swing(values["fed"])) if "fed" in values else swing


def _branches(architecture: Architecture, values: dict[str, torch.Tensor]) -> tuple[Swing, ...]:
    norms = architecture.norms
    if not (norms.post_attention and norms.post_mlp):
        return ()
    return tuple(_swing(values[role]) for role in BRANCHES if role in values)


def _swing(x: torch.Tensor) -> Swing:
    return Swing(peak=_peak(x), least=x.square().mean(1).min().item())


def _peak(x: torch.Tensor) -> float:
    return x.abs().max().item()
