"""How far a checkpoint's residual stream swings, measured layer by layer."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

import torch
from attrs import frozen

from topoc.lowering.architecture import Architecture
from topoc.lowering.build.layer import DecoderLayer, Keys
from topoc.lowering.build.scope import Scope
from topoc.lowering.interpret.reference import evaluate
from topoc.lowering.ir import DType, Input, Value, Weight
from topoc.lowering.manifest import Source
from topoc.lowering.rescale import Range, Swing
from topoc.lowering.rope import table


class Tensors(Protocol):
    """Checkpoint tensors by role, in float32."""

    def rows(self, role: str, start: int, stop: int) -> torch.Tensor:
        """Some rows."""


def measure(architecture: Architecture, tensors: Tensors, tokens: list[int]) -> tuple[Range, ...]:
    """The ranges of each layer and of the final norm, over one pass of the tokens in float32."""
    with _one_thread():
        return tuple(_ranges(architecture, tensors, tokens))


@contextmanager
def _one_thread() -> Iterator[None]:
    """Sums in one order whatever the machine; a second thread gains nothing on so few tokens."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def _ranges(architecture: Architecture, tensors: Tensors, tokens: list[int]) -> Iterator[Range]:
    rows = [tensors.rows("embed", token, token + 1) for token in tokens]
    x = torch.cat(rows).T[None, :, None, :] * architecture.embed_multiplier
    for index in range(len(architecture.layers)):
        values = _LayerProbe(architecture, index, tensors).run(x)
        after = values["out"]
        yield Range(
            stream=_swing(x).joined(_swing(values["attended"])),
            left=after.abs().max().item(),
            branches=_branches(architecture, values),
        )
        x = after
    yield Range(stream=_swing(x), left=x.abs().max().item())


def _branches(architecture: Architecture, values: dict[str, torch.Tensor]) -> tuple[Swing, ...]:
    norms = architecture.norms
    if not (norms.post_attention and norms.post_mlp):
        return ()
    return _swing(values["o"]), _swing(values["down"])


@frozen
class _LayerProbe:
    """One decoder layer without caches, as a program of its own."""

    architecture: Architecture
    index: int
    tensors: Tensors

    def run(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        """Every value of the layer, by its name without the layer's number."""
        tokens = x.shape[3]
        scope = Scope(DType.FP32, layer=self.index)
        stream = scope.input("hidden", tuple(x.shape), Source(kind="embedding", name="embed"))
        mask = scope.input("mask", (1, 1, tokens, tokens), Source(kind="mask"))
        layer = DecoderLayer(self.architecture, self.index)
        layer.lower(scope, stream, lambda k, v: Keys(k, v, mask))
        program = scope.program("probe")
        values = evaluate(program, self._inputs(program.inputs, x), self._fetch)
        return {value.name.partition("_")[2]: tensor for value, tensor in values.items()}

    def _inputs(self, inputs: tuple[Input, ...], x: torch.Tensor) -> dict[Value, torch.Tensor]:
        spec, tokens = self.architecture.layers[self.index], x.shape[3]
        angles = torch.from_numpy(table(self.architecture.rope(spec.rope), tokens, "float32"))
        fed = {
            "embedding": x,
            "mask": _causal(tokens, spec.window),
            "rope_cos": angles[0].T[None, None],
            "rope_sin": angles[1].T[None, None],
        }
        return {one.value: fed[one.source.kind] for one in inputs}

    def _fetch(self, weight: Weight) -> torch.Tensor:
        stored = self.tensors.rows(weight.role, 0, weight.type.shape[0])
        return (stored.reshape(weight.type.shape) + weight.offset) * weight.factor


def _causal(tokens: int, window: int | None) -> torch.Tensor:
    ahead = torch.arange(tokens)[None, :] - torch.arange(tokens)[:, None]
    hidden = ahead > 0
    if window is not None:
        hidden |= ahead <= -window
    return hidden.float()[None, None] * -1.0e9


def _swing(x: torch.Tensor) -> Swing:
    return Swing(peak=x.abs().max().item(), least=x.square().mean(1).min().item())
