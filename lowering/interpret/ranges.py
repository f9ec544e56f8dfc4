"""How far a checkpoint's residual stream swings, measured layer by layer."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

import torch
from attrs import define, field

from topoc.lowering.architecture import Architecture
from topoc.lowering.build.layer import DecoderLayer, Keys
from topoc.lowering.build.per_layer import combined
from topoc.lowering.build.scope import Scope
from topoc.lowering.interpret.reference import evaluate
from topoc.lowering.ir import DType, Input, Program, Value, Weight
from topoc.lowering.manifest import Source
from topoc.lowering.rescale import BRANCHES, Range, Swing
from topoc.lowering.rope import table

VECTORS = "vectors"


class Tensors(Protocol):
    """Checkpoint tensors by role, in float32."""

    def rows(self, role: str, start: int, stop: int) -> torch.Tensor:
        """Some rows."""


def measure(architecture: Architecture, tensors: Tensors, tokens: list[int]) -> tuple[Range, ...]:
    """The ranges of each layer and of the final norm, over one pass of the tokens in float32.

    Layers read the KV of the donors that the checkpoint gives them, whatever a topology says.
    """
    with _one_thread():
        return tuple(_Walk(architecture, tensors, tokens).ranges())


@contextmanager
def _one_thread() -> Iterator[None]:
    """Sums in one order whatever the machine; a second thread gains nothing on so few tokens."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


@define
class _Walk:
    """One pass through the layers, each a program of its own without caches."""

    architecture: Architecture
    tensors: Tensors
    tokens: list[int]
    fed: dict[str, torch.Tensor] = field(factory=dict)  # between the programs, by source name

    def ranges(self) -> Iterator[Range]:
        x = self._looked_up("embed") * self.architecture.embed_multiplier
        self._combine(x)
        for index in range(len(self.architecture.layers)):
            values = self._layer(index, x)
            after = values["out"]
            yield Range(
                stream=_stream(x, values),
                left=after.abs().max().item(),
                branches=_branches(self.architecture, values),
            )
            x = after
        yield Range(stream=_swing(x), left=x.abs().max().item())

    def _looked_up(self, role: str) -> torch.Tensor:
        """The tokens' rows of a table, (1, width, 1, T)."""
        rows = [self.tensors.rows(role, token, token + 1) for token in self.tokens]
        return torch.cat(rows).T[None, :, None, :]

    def _combine(self, x: torch.Tensor) -> None:
        """Per-layer vectors, where the family has them."""
        spec = self.architecture.per_layer
        if spec is None:
            return
        scope = Scope(DType.FP32)
        hidden = scope.input("hidden", tuple(x.shape), Source(kind="embedding", name="embed"))
        made = combined(scope, self.architecture, hidden)
        self.fed |= {"embed": x, "ple_table": self._looked_up("ple_table") * spec.row_multiplier}
        program = scope.program("per_layer")
        self.fed[VECTORS] = self._evaluate(program)[made]

    def _layer(self, index: int, x: torch.Tensor) -> dict[str, torch.Tensor]:
        """Every value of a layer, by its name without the layer's number."""
        spec, count = self.architecture.layers[index], len(self.tokens)
        scope = Scope(DType.FP32, layer=index)
        stream = scope.input("hidden", tuple(x.shape), Source(kind="embedding", name="embed"))
        window = Source(kind="mask", window=spec.window)
        mask = scope.input("mask", (1, 1, count, count), window)
        vectors = None
        if VECTORS in self.fed:
            shape = tuple(self.fed[VECTORS].shape)
            vectors = scope.input("ple", shape, Source(kind="value", name=VECTORS))
        layer = DecoderLayer(architecture=self.architecture, index=index)
        if spec.donor is None:
            layer.lower(scope, stream, lambda k, v: Keys(k, v, mask), vectors)
        else:
            layer.lower(scope, stream, self._donated(scope, spec.donor, mask), vectors)
        self.fed["embed"] = x
        values = self._evaluate(scope.program("probe"))
        named = {value.name.partition("_")[2]: tensor for value, tensor in values.items()}
        if spec.donor is None:
            self.fed |= {f"l{index}.k": named["k_rows"], f"l{index}.v": named["v_rows"]}
        return named

    def _donated(self, scope: Scope, donor: int, mask: Value) -> Keys:
        """The rows that a donor's program left."""
        k, v = (
            scope.input(
                holds,
                tuple(self.fed[f"l{donor}.{holds}"].shape),
                Source(kind="value", name=f"l{donor}.{holds}"),
            )
            for holds in "kv"
        )
        return Keys(k, v, mask)

    def _evaluate(self, program: Program) -> dict[Value, torch.Tensor]:
        return evaluate(
            program, {one.value: self._input(one) for one in program.inputs}, self._fetch
        )

    def _input(self, one: Input) -> torch.Tensor:
        source, count = one.source, len(self.tokens)
        if source.kind == "mask":
            return _causal(count, source.window)
        if source.kind in {"rope_cos", "rope_sin"}:
            rope = self.architecture.rope(str(source.name))
            angles = torch.from_numpy(table(rope, count, "float32"))
            return angles[int(source.kind == "rope_sin")].T[None, None]
        return self.fed[str(source.name)]

    def _fetch(self, weight: Weight) -> torch.Tensor:
        first = weight.first or 0
        stored = self.tensors.rows(weight.role, first, first + weight.type.shape[0])
        return (stored.reshape(weight.type.shape) + weight.offset) * weight.factor


def _stream(x: torch.Tensor, values: dict[str, torch.Tensor]) -> Swing:
    """The stream wherever a layer reads it: before attention, before the MLP, before the gate."""
    swing = _swing(x).joined(_swing(values["attended"]))
    return swing.joined(_swing(values["fed"])) if "fed" in values else swing


def _branches(architecture: Architecture, values: dict[str, torch.Tensor]) -> tuple[Swing, ...]:
    norms = architecture.norms
    if not (norms.post_attention and norms.post_mlp):
        return ()
    return tuple(_swing(values[role]) for role in BRANCHES if role in values)


def _causal(tokens: int, window: int | None) -> torch.Tensor:
    ahead = torch.arange(tokens)[None, :] - torch.arange(tokens)[:, None]
    hidden = ahead > 0
    if window is not None:
        hidden |= ahead <= -window
    return hidden.float()[None, None] * -1.0e9


def _swing(x: torch.Tensor) -> Swing:
    return Swing(peak=x.abs().max().item(), least=x.square().mean(1).min().item())
