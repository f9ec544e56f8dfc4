"""One chunk of one function: its parts, in dataflow order, as a program."""

from functools import partial

from attrs import frozen

from topoc.dsl.model import Chunk, Function, Head, Part, Topology
from topoc.dsl.plain import Plain
from topoc.lowering.architecture import Architecture
from topoc.lowering.build.caches import CacheAccess, caches_of
from topoc.lowering.build.layer import DecoderLayer
from topoc.lowering.build.scope import Scope
from topoc.lowering.ir import DType, Program, Value
from topoc.lowering.manifest import Sink, Source
from topoc.lowering.ops.elementwise import Scale, Softcap
from topoc.lowering.ops.head import Argmax, SelectToken, TopK
from topoc.lowering.ops.linear import Embed, Linear
from topoc.lowering.ops.norm import RmsNorm


@frozen(kw_only=True, eq=False, repr=False)
class ChunkBuilder(Plain):
    """Builds the program of a chunk in a function's chunk list."""

    topology: Topology
    architecture: Architecture
    function: Function
    chunk: Chunk
    dtype: DType

    def build(self) -> Program:
        """The program, named like the function."""
        scope = Scope(self.dtype)
        caches = self._caches()
        x: Value | None = None
        for part in self.chunk.parts:
            scope.span = part.span
            x = self._part(scope, part, x, caches)
        for access in dict.fromkeys(caches.values()):
            access.export(scope)
        if x is not None and not self.chunk.has("head"):
            scope.output(x, Sink(kind="value", name=self.chunk.name), "hidden_out")
        return scope.program(self.function.name)

    def _caches(self) -> dict[int, CacheAccess]:
        """The access of each layer's cache."""
        return {
            index: access
            for cache in caches_of(self.topology, self.architecture, self.chunk)
            for access in [CacheAccess(cache, self.chunk.name, self.function.tokens)]
            for index in cache.layers
        }

    def _part(
        self, scope: Scope, part: Part, x: Value | None, caches: dict[int, CacheAccess]
    ) -> Value:
        if part.kind == "embed":
            return self._embed(scope)
        x = self._entry(scope) if x is None else x
        if part.kind == "layers":
            return self._layers(scope, part, x, caches)
        if part.kind == "norm":
            return self._norm(scope, self._last_row(scope, x))
        return self._head(scope, part.head or Head(mode="argmax"), self._last_row(scope, x))

    def _embed(self, scope: Scope) -> Value:
        """Rows as they are stored, so that a tied head shares them, then the multiplier."""
        arch, tokens = self.architecture, self.function.tokens
        ids = scope.input("tokens", (1, tokens), Source(kind="tokens"), DType.INT32)
        table = scope.weight("embed", (arch.vocabulary, arch.hidden))
        rows = scope.bind("embedded", Embed(ids, table))
        return scope.bind("scaled", Scale(rows, arch.embed_multiplier))

    def _entry(self, scope: Scope) -> Value:
        """The hidden state that the chunk begins with: the host's, or the chunk's before."""
        chunks = self.topology.chunks_of(self.function)
        at = chunks.index(self.chunk)
        before = chunks[at - 1] if at else None
        shrunk = before is not None and (before.has("norm") or before.has("head"))
        tokens = 1 if shrunk else self.function.tokens
        shape = (1, self.architecture.hidden, 1, tokens)
        if before is None:
            return scope.input("hidden", shape, Source(kind="embedding", name="embed"))
        return scope.input("hidden", shape, Source(kind="value", name=before.name))

    def _layers(self, scope: Scope, part: Part, x: Value, caches: dict[int, CacheAccess]) -> Value:
        for index in range(part.first, part.last + 1):
            scope.layer = index
            attend = partial(caches[index].attend, scope)
            x = DecoderLayer(self.architecture, index).lower(scope, x, attend)
        scope.layer = None
        return x

    def _last_row(self, scope: Scope, x: Value) -> Value:
        """The last real row of a call of several tokens."""
        tokens = x.shape[3]
        if tokens == 1:
            return x
        selector = scope.input(f"row_t{tokens}", (1, 1, 1, tokens), Source(kind="last_row"))
        return scope.bind("last_row", SelectToken(x, selector))

    def _norm(self, scope: Scope, x: Value) -> Value:
        norms = self.architecture.norms
        gain = scope.weight("norm", (self.architecture.hidden,), norms.offset)
        return scope.bind("normed", RmsNorm(x, gain, norms.eps, axis=1))

    def _head(self, scope: Scope, head: Head, x: Value) -> Value:
        if head.mode == "hidden":
            scope.output(x, Sink(kind="hidden"), "hidden_out")
            return x
        arch = self.architecture
        role = "embed" if arch.tied else "head"
        logits = Linear(x, scope.weight(role, (arch.vocabulary, arch.hidden)))
        if arch.final_softcap is None:
            x = scope.bind("logits", logits)
        else:
            raw = scope.bind("raw_logits", logits)
            x = scope.bind("logits", Softcap(raw, arch.final_softcap))
        return self._answer(scope, head, x)

    def _answer(self, scope: Scope, head: Head, logits: Value) -> Value:
        if head.mode == "logits":
            scope.output(logits, Sink(kind="logits"))
        elif head.mode == "argmax":
            token = scope.bind("token", Argmax(logits))
            scope.output(token, Sink(kind="token", probe=logits.name))
        else:
            best, ids = scope.bind_all(("topk_logits", "topk_ids"), TopK(logits, head.k or 1))
            scope.output(best, Sink(kind="topk_logits"))
            scope.output(ids, Sink(kind="topk_ids"))
        return logits
