"""Passes of tokens through a checkpoint in float32, layer by layer, before anything is emitted."""

from collections.abc import Iterator, Sequence
from typing import Protocol

import torch
from attrs import define, field, frozen

from topoc.lowering.architecture import Architecture
from topoc.lowering.build.head import normed
from topoc.lowering.build.layer import DecoderLayer, Keys
from topoc.lowering.build.per_layer import combined
from topoc.lowering.build.scope import Scope
from topoc.lowering.interpret.reference import evaluate
from topoc.lowering.ir import DType, Input, Program, Value, Weight
from topoc.lowering.manifest import Source
from topoc.lowering.ops.linear import Linear
from topoc.lowering.rope import table
from topoc.lowering.stored import scaled

VECTORS = "vectors"


class Tensors(Protocol):
    """Checkpoint tensors by role, in float32."""

    def rows(self, role: str, start: int, stop: int) -> torch.Tensor:
        """Some rows."""


@frozen
class Visit:
    """One program over one window of tokens."""

    layer: int | None  # None before the first layer, and behind the last
    before: torch.Tensor  # the residual stream that it took
    values: dict[str, torch.Tensor] = field(repr=False)  # without the layer's number
    reads: dict[str, str] = field(repr=False)  # role of a projection to the value that it reads


@define
class Walk:
    """Windows of tokens on their way through the layers, each a program of its own without caches.

    Layers read the KV of the donors that the checkpoint gives them, whatever a topology says. All
    windows pass a layer before any goes on, so that the weights of one layer are held at a time.
    """

    architecture: Architecture
    tensors: Tensors
    windows: Sequence[Sequence[int]]
    _streams: list[torch.Tensor] = field(factory=list)  # (1, H, 1, T) of each window
    _fed: list[dict[str, torch.Tensor]] = field(factory=list)  # between programs, by source name
    _held: dict[Weight, torch.Tensor] = field(factory=dict)  # weights of the program at hand

    def visits(self) -> Iterator[Visit]:
        """The per-layer vectors if there are any, every layer, and what the head reads."""
        multiplier = self.architecture.embed_multiplier
        self._streams = [self._looked_up("embed", one) * multiplier for one in self.windows]
        self._fed = [{} for _ in self.windows]
        if self.architecture.per_layer is not None:
            yield from map(self._combine, range(len(self.windows)))
        for index in range(len(self.architecture.layers)):
            self._held.clear()
            for at in range(len(self.windows)):
                yield self._layer(index, at)
        self._held.clear()
        yield from map(self._head, range(len(self.windows)))

    def _looked_up(self, role: str, tokens: Sequence[int]) -> torch.Tensor:
        """The tokens' rows of a table, (1, width, 1, T)."""
        rows = [self.tensors.rows(role, token, token + 1) for token in tokens]
        return torch.cat(rows).T[None, :, None, :]

    def _combine(self, at: int) -> Visit:
        """Per-layer vectors, where the family has them."""
        x, spec = self._streams[at], self.architecture.per_layer
        assert spec is not None  # noqa: S101 — it is not called without
        scope, hidden = self._scope(x)
        made = combined(scope, self.architecture, hidden)
        rows = self._looked_up("ple_table", self.windows[at]) * spec.row_multiplier
        self._fed[at] |= {"embed": x, "ple_table": rows}
        visit = self._visit(scope.program("per_layer"), at, None)
        self._fed[at][VECTORS] = visit.values[made.name]
        del self._fed[at]["ple_table"]
        return visit

    def _layer(self, index: int, at: int) -> Visit:
        spec, fed = self.architecture.layers[index], self._fed[at]
        scope, stream = self._scope(self._streams[at], index)
        count = len(self.windows[at])
        window = Source(kind="mask", window=spec.window)
        mask = scope.input("mask", (1, 1, count, count), window)
        vectors = None
        if VECTORS in fed:
            shape = tuple(fed[VECTORS].shape)
            vectors = scope.input("ple", shape, Source(kind="value", name=VECTORS))
        layer = DecoderLayer(architecture=self.architecture, index=index)
        if spec.donor is None:
            layer.lower(scope, stream, lambda k, v: Keys(k, v, mask), vectors)
        else:
            layer.lower(scope, stream, _donated(scope, spec.donor, mask, fed), vectors)
        visit = self._visit(scope.program("probe"), at, index)
        self._streams[at] = visit.values["out"]
        if any(one.donor == index for one in self.architecture.layers):
            values = visit.values
            fed |= {f"l{index}.k": values["k_rows"], f"l{index}.v": values["v_rows"]}
        return visit

    def _head(self, at: int) -> Visit:
        """The final norm; the matrix behind it is not multiplied."""
        scope, stream = self._scope(self._streams[at])
        made = normed(scope, self.architecture, stream)
        visit = self._visit(scope.program("head"), at, None)
        visit.reads["embed" if self.architecture.tied else "head"] = made.name
        return visit

    def _scope(self, x: torch.Tensor, layer: int | None = None) -> tuple[Scope, Value]:
        scope = Scope(DType.FP32, layer=layer)
        source = Source(kind="embedding", name="embed")
        return scope, scope.input("hidden", tuple(x.shape), source)

    def _visit(self, program: Program, at: int, layer: int | None) -> Visit:
        """Evaluate a program over a window."""
        before = self._fed[at]["embed"] = self._streams[at]
        given = {one.value: self._input(one, at) for one in program.inputs}
        values = evaluate(program, given, self._fetch)
        prefix = "" if layer is None else f"l{layer}_"
        projections = (one.op for one in program.bindings if isinstance(one.op, Linear))
        reads = {op.weight.role: op.x.name.removeprefix(prefix) for op in projections}
        named = {value.name.removeprefix(prefix): found for value, found in values.items()}
        return Visit(layer, before, named, reads)

    def _input(self, one: Input, at: int) -> torch.Tensor:
        source, count = one.source, len(self.windows[at])
        if source.kind == "mask":
            return _causal(count, source.window)
        if source.kind in {"rope_cos", "rope_sin"}:
            rope = self.architecture.rope(str(source.name))
            angles = torch.from_numpy(table(rope, count, "float32"))
            return angles[int(source.kind == "rope_sin")].T[None, None]
        return self._fed[at][str(source.name)]

    def _fetch(self, weight: Weight) -> torch.Tensor:
        """A weight, kept for the other windows where there are any."""
        if weight in self._held:
            return self._held[weight]
        first = weight.first or 0
        stored = self.tensors.rows(weight.role, first, first + weight.type.shape[0])
        found = scaled(stored.reshape(weight.type.shape), weight)
        if len(self.windows) > 1:
            self._held[weight] = found
        return found


def _donated(scope: Scope, donor: int, mask: Value, fed: dict[str, torch.Tensor]) -> Keys:
    """The rows that a donor's program left."""
    k, v = (
        scope.input(holds, tuple(fed[name].shape), Source(kind="value", name=name))
        for holds in "kv"
        for name in [f"l{donor}.{holds}"]
    )
    return Keys(k, v, mask)


def _causal(tokens: int, window: int | None) -> torch.Tensor:
    ahead = torch.arange(tokens)[None, :] - torch.arange(tokens)[:, None]
    hidden = ahead > 0
    if window is not None:
        hidden |= ahead <= -window
    return hidden.float()[None, None] * -1.0e9
