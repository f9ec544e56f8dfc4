"""One chunk of one function: its parts, in dataflow order, as a program."""

from attrs import define, field

from topoc.dsl.model import Block, Chunk, Function, Head, Part, Topology
from topoc.lowering.architecture import Architecture, PerLayer
from topoc.lowering.build.caches import Caches
from topoc.lowering.build.head import answer, logits, normed
from topoc.lowering.build.layer import DecoderLayer, Keys
from topoc.lowering.build.layout import Layout
from topoc.lowering.build.per_layer import combined
from topoc.lowering.build.scope import Scope
from topoc.lowering.ir import DType, Program, Value
from topoc.lowering.manifest import Sink, Source
from topoc.lowering.ops.elementwise import Copy, Scale
from topoc.lowering.ops.head import SelectToken
from topoc.lowering.ops.linear import Embed

PER_LAYER = "ple"
"""The value that carries per-layer vectors from chunk to chunk, and the part that makes it."""


@define(kw_only=True, eq=False, repr=False)
class ChunkBuilder:
    """Builds the program of a chunk in a function's chunk list."""

    topology: Topology
    architecture: Architecture
    layout: Layout
    function: Function
    chunk: Chunk
    scope: Scope
    _caches: Caches = field(init=False)
    _vectors: Value | None = field(default=None, init=False)  # per-layer, once they are there

    def __attrs_post_init__(self) -> None:
        self._caches = Caches(self.topology, self.layout, self.function, self.chunk, self.scope)

    def build(self) -> Program:
        """The program, named like the function."""
        scope, x = self.scope, None
        for part in self.chunk.parts:
            scope.span = part.span
            x = self._part(part, x)
        self._caches.export()
        if self.chunk.has(PER_LAYER) and any(chunk.layers for chunk in self._after):
            scope.output(self._required_vectors(), Sink(kind="value", name=PER_LAYER), "ple_out")
        if x is not None and not self.chunk.has("head"):
            name = f"{self.chunk.name}.hidden"
            if {part.kind for part in self.chunk.parts} == {PER_LAYER}:
                x = scope.bind("passed", Copy(x))  # an input is no output
            scope.output(x, Sink(kind="value", name=name), "hidden_out")
        return scope.program(self.function.name)

    @property
    def _before(self) -> tuple[Chunk, ...]:
        """The chunks that the function runs before this one."""
        chunks = self.topology.chunks_of(self.function)
        return chunks[: chunks.index(self.chunk)]

    @property
    def _after(self) -> tuple[Chunk, ...]:
        """Those that it runs after it."""
        chunks = self.topology.chunks_of(self.function)
        return chunks[chunks.index(self.chunk) + 1 :]

    def _part(self, part: Part, x: Value | None) -> Value:
        if part.kind == "embed":
            return self._embed()
        x = self._entry() if x is None else x
        if part.kind == PER_LAYER:
            self._vectors = combined(self.scope, self.architecture, x)
            return x
        if part.kind == "layers":
            return self._layers(part, x)
        x = self._answering_rows(x)
        if part.kind == "norm":
            return normed(self.scope, self.architecture, x)
        return self._head(part.head or Head(mode="argmax"), x)

    def _embed(self) -> Value:
        """Rows as they are stored, so that a tied head shares them, then the multiplier."""
        arch, tokens = self.architecture, self.function.tokens
        ids = self.scope.input("tokens", (1, tokens), Source(kind="tokens"), DType.INT32)
        table = self.scope.weight("embed", (arch.vocabulary, arch.hidden))
        rows = self.scope.bind("embedded", Embed(ids, table))
        return self.scope.bind("scaled", Scale(rows, arch.embed_multiplier))

    def _entry(self) -> Value:
        """The hidden state that the chunk begins with: the host's, or the chunk's before."""
        before = self._before[-1] if self._before else None
        shrunk = before is not None and (before.has("norm") or before.has("head"))
        tokens = 1 if shrunk and self.function.role != "verify" else self.function.tokens
        shape = (1, self.architecture.hidden, 1, tokens)
        if before is None:
            return self.scope.input("hidden", shape, Source(kind="embedding", name="embed"))
        return self.scope.input("hidden", shape, Source(kind="value", name=f"{before.name}.hidden"))

    def _layers(self, part: Part, x: Value) -> Value:
        for index in range(part.first, part.last + 1):
            self.scope.layer = index
            x = self._layer(self.topology.blocks[index], x)
            if index in self.topology.taps:
                self._tap(index, x)
        self.scope.layer = None
        return x

    def _layer(self, block: Block, x: Value) -> Value:
        layer = DecoderLayer(
            architecture=self.architecture, index=block.index, tile=block.attention.tile
        )
        per_layer = None if self.architecture.per_layer is None else self._required_vectors()
        if block.kv.donor is not None:
            keys = self._caches.shared(block, block.kv.donor)
            return layer.lower(self.scope, x, keys, per_layer)

        def attend(k: Value, v: Value) -> Keys:
            return self._caches.attend(block, k, v)

        return layer.lower(self.scope, x, attend, per_layer)

    def _required_vectors(self) -> Value:
        """Per-layer vectors: made here, by a chunk before, or by the host."""
        if self._vectors is None:
            per_layer = self.architecture.per_layer
            assert isinstance(per_layer, PerLayer)  # noqa: S101 — the part is refused without
            channels = len(self.architecture.layers) * per_layer.width
            made = any(chunk.has(PER_LAYER) for chunk in self._before)
            source = Source(kind="value", name=PER_LAYER) if made else Source(kind="per_layer")
            shape = (1, channels, 1, self.function.tokens)
            layer, self.scope.layer = self.scope.layer, None
            self._vectors = self.scope.input("ple", shape, source)
            self.scope.layer = layer
        return self._vectors

    def _tap(self, index: int, x: Value) -> None:
        """The residual stream for the host, beside whatever else becomes of it."""
        copy = self.scope.bind("tapped", Copy(x))
        self.scope.output(copy, Sink(kind="tap", layer=index), f"tap_{index}")

    def _answering_rows(self, x: Value) -> Value:
        """All rows of a verify; of another call of several tokens the last real row."""
        tokens = x.shape[3]
        if tokens == 1 or self.function.role == "verify":
            return x
        selector = self.scope.input(f"row_t{tokens}", (1, 1, 1, tokens), Source(kind="last_row"))
        return self.scope.bind("last_row", SelectToken(x, selector))

    def _head(self, head: Head, x: Value) -> Value:
        if head.mode == "hidden":
            self.scope.output(x, Sink(kind="hidden"), "hidden_out")
            return x
        x = logits(self.scope, self.architecture, x, head.split)
        answer(self.scope, head, x)
        return x
