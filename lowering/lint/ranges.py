"""How far every value of a bundle swings: the interpreter on a prompt, with the real weights.

The packages are computed in fp32, so that what would be infinite in fp16 shows its size.
"""

from collections.abc import Iterator, Mapping, MutableMapping, Sequence
from math import inf
from pathlib import Path
from typing import Any

import torch
from attrs import define, evolve, field

from topoc.dsl.diagnostic import Diagnostic, Label, Place, Severity, error, warning
from topoc.dsl.lint.subject import Subject
from topoc.dsl.model import Topology
from topoc.dsl.source import Span
from topoc.lowering.bundle.reader import Bundle
from topoc.lowering.engine.driver import Engine
from topoc.lowering.engine.positions import Array
from topoc.lowering.engine.predict import InterpreterPredictor
from topoc.lowering.interpret.kernels import KERNELS
from topoc.lowering.manifest import Step
from topoc.lowering.rescale import FP16_MAX, FP16_NORMAL

NEAR = 2.0  # what a few tokens show may be exceeded on others


@define
class Swing:
    """What one value was seen to be, over all calls."""

    kind: str  # of the op that makes it
    peak: float = 0.0  # greatest |x|
    least: float = inf  # smallest |x| that is not zero


@define
class Watched(InterpreterPredictor):
    """The interpreter, which keeps the swing of each floating result of arithmetic."""

    swings: dict[tuple[str, str], dict[str, Swing]] = field(factory=dict, init=False, repr=False)

    def run(
        self,
        step: Step,
        inputs: Mapping[str, Array],
        probes: Sequence[str],
        states: MutableMapping[str, torch.Tensor],
    ) -> dict[str, torch.Tensor]:
        """As ever; what is computed on the way is measured."""
        seen = self.swings.setdefault((step.package, step.function), {})

        def observe(name: str, kind: str, value: torch.Tensor) -> None:
            if value.is_floating_point() and KERNELS[kind].arithmetic:
                _widen(seen.setdefault(name, Swing(kind)), value)

        return self.machine(step).run(inputs, probes, states, observe=observe)


def _widen(swing: Swing, value: torch.Tensor) -> None:
    sizes = value.abs()
    swing.peak = max(swing.peak, sizes.max().item())
    if swing.peak < FP16_NORMAL:  # only what is small throughout is looked at more closely
        nonzero = sizes[sizes > 0.0]
        swing.least = min(swing.least, nonzero.min().item() if nonzero.numel() else inf)


def measured(bundle: Bundle, tokens: Sequence[int]) -> Watched:
    """Feed the tokens one by one, and keep what every value was.

    A call of several tokens holds padding, whose values are nobody's.
    """
    watched = Watched(bundle)
    roles = {one.name for one in bundle.manifest.functions if one.role == "decode"}
    Engine(bundle, watched).feed(tokens, only=min(roles, default=None))
    return watched


def findings(
    watched: Watched, tokens: Sequence[int], topology: Topology | None
) -> Iterator[Diagnostic]:
    """What leaves fp16, what vanishes in it, and whether the prompt could have shown it."""
    bundle = watched.bundle
    bos = bundle.manifest.model.bos
    if bos and (not tokens or tokens[0] not in bos):
        message = "the prompt does not begin with BOS, whose values swing widest by far"
        place = Place(str(bundle.path), "prompt")
        yield warning("range.no-bos", message, place, help=f"begin the prompt with token {bos[0]}")
    for (package, function), swings in watched.swings.items():
        place = Place(str(bundle.path / package), function)
        yield from _of_function(swings, place, topology)


def _of_function(
    swings: Mapping[str, Swing], place: Place, topology: Topology | None
) -> Iterator[Diagnostic]:
    over = {name: one for name, one in swings.items() if not one.peak <= FP16_MAX}
    near = {n: s for n, s in swings.items() if FP16_MAX / NEAR < s.peak <= FP16_MAX}
    lost = {n: s for n, s in swings.items() if 0.0 < s.peak < FP16_NORMAL}
    if over:
        name, first = next(iter(over.items()))
        message = f"`{name}` reaches {first.peak:,.0f}, and fp16 ends at {FP16_MAX:,.0f}"
        way = "compile with the exact rescale, which is the default"
        found = error("range.overflow", message, *_at(place, name, topology), help=way)
        yield _counted(found, place, name, len(over))
    elif near:
        name = max(near, key=lambda one: near[one].peak)
        message = f"`{name}` reaches {near[name].peak:,.0f}, more than half of what fp16 holds"
        way = "measure on more prompts, or compile with the exact rescale"
        found = warning("range.near-overflow", message, *_at(place, name, topology), help=way)
        yield _counted(found, place, name, len(near))
    if lost:
        name = min(lost, key=lambda one: lost[one].peak)
        message = f"`{name}` stays below {lost[name].peak:.1e}, where fp16 is subnormal"
        way = "a device may count it as zero: scale it by a power of two"
        at, words = _at(place, name, topology)
        found = Diagnostic("range.subnormal", Severity.NOTE, message, Label(at, words), help=way)
        yield _counted(found, place, name, len(lost))


def _at(place: Place, name: str, topology: Topology | None) -> tuple[Span | Place, str]:
    """The part of the text that asks for the layer, or the op where no text is at hand."""
    layer = layer_of(name)
    words = f"layer {layer}" if layer is not None else ""
    if topology is None or topology.span is None:
        return Place(place.file, f"{place.part}/{name}"), words
    if layer is not None:
        return Subject(topology).runs_at(layer), words
    called = Path(place.file).stem
    spans = (one.span for one in topology.chunks if one.name == called)
    return next(spans, None) or topology.span, words


def _counted(found: Diagnostic, place: Place, name: str, count: int) -> Diagnostic:
    words = f"the first of {count} values" if count > 1 else "in MIL"
    related = (Label(Place(place.file, f"{place.part}/{name}"), words),)
    return evolve(found, related=related)


def layer_of(name: str) -> int | None:
    """The decoder layer that a value of ours belongs to: `l7_out` is of layer 7."""
    first = name.partition("_")[0]
    return int(first[1:]) if first[:1] == "l" and first[1:].isdecimal() else None


def table(watched: Watched) -> list[dict[str, Any]]:
    """Every value with its greatest magnitude, in the order it is computed; JSON's types."""
    return [
        {"package": package, "function": function, "value": name, "op": one.kind, "peak": one.peak}
        for (package, function), swings in watched.swings.items()
        for name, one in swings.items()
    ]
