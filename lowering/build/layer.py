"""The decoder layer that every family lowers through; a family is data, never a copy of it."""

from collections.abc import Callable

from attrs import frozen

from topoc.dsl.plain import Plain
from topoc.lowering.architecture import Architecture, LayerSpec
from topoc.lowering.build.scope import Scope
from topoc.lowering.ir import Op, Value
from topoc.lowering.manifest import Source
from topoc.lowering.ops.attention import Attention, TiledAttention
from topoc.lowering.ops.elementwise import Activation, Add, Mul, ScaleBy
from topoc.lowering.ops.heads import Channels, MergeHeads, Rope, SplitHeads, TokenRows
from topoc.lowering.ops.linear import Linear
from topoc.lowering.ops.norm import RmsNorm, UnitRmsNorm


@frozen(eq=False, repr=False)
class Keys(Plain):
    """What a layer's queries attend over: keys and values (1, G, S, D), and who sees what."""

    k: Value
    v: Value
    mask: Value


Attend = Callable[[Value, Value], Keys]
"""Given a call's new K and V rows, (1, G, T, D) each, what its queries attend over."""


@frozen(kw_only=True, eq=False, repr=False)
class DecoderLayer(Plain):
    """One layer of an architecture; lays its ops into a scope."""

    architecture: Architecture
    index: int
    tile: int | None = None  # keys that attention takes at a time; None for all

    @property
    def spec(self) -> LayerSpec:
        """The layer's dimensions."""
        return self.architecture.layers[self.index]

    def lower(
        self, scope: Scope, x: Value, keys: Attend | Keys, per_layer: Value | None = None
    ) -> Value:
        """The residual stream after the layer, (1, H, 1, T), from the one before it.

        `keys` are those of another layer, or make this layer's own. `per_layer` holds the vectors
        of all layers, (1, layers * width, 1, T), where the family has them.
        """
        norms = self.architecture.norms
        branch = self._attention(scope, self._norm(scope, x, "input_norm"), keys)
        if norms.post_attention:
            branch = self._norm(scope, branch, "post_attention_norm")
        x = scope.bind("attended", Add(x, branch))
        branch = self._mlp(scope, self._norm(scope, x, "pre_mlp_norm"))
        if norms.post_mlp:
            branch = self._norm(scope, branch, "post_mlp_norm")
        x = scope.bind("out" if self._ends_with_mlp else "fed", Add(x, branch))
        if per_layer is not None:
            x = self._per_layer(scope, x, per_layer)
        if self.architecture.layer_scalar:
            factor = scope.weight(f"layers.{self.index}.scalar", (1,))
            x = scope.bind("out", ScaleBy(x, factor))
        return x

    @property
    def _ends_with_mlp(self) -> bool:
        return self.architecture.per_layer is None and not self.architecture.layer_scalar

    def _per_layer(self, scope: Scope, x: Value, vectors: Value) -> Value:
        """The gated branch of the per-layer vector."""
        width = vectors.shape[1] // len(self.architecture.layers)
        mine = scope.bind("ple", Channels(vectors, self.index * width, width))
        gate = self._project(scope, x, "ple_gate", width)
        active = scope.bind("ple_active", Activation(gate, self.architecture.activation))
        gated = scope.bind("ple_gated", Mul(active, mine))
        branch = self._project(scope, gated, "ple_projection", self.architecture.hidden)
        name = "enriched" if self.architecture.layer_scalar else "out"
        return scope.bind(name, Add(x, self._norm(scope, branch, "ple_norm")))

    def _attention(self, scope: Scope, x: Value, keys: Attend | Keys) -> Value:
        q = self._heads(scope, x, "q", self.spec.heads)
        if not isinstance(keys, Keys):
            k = self._heads(scope, x, "k", self.spec.kv_heads)
            keys = keys(k, self._values(scope, x))
        scale = self.architecture.attention_scale
        if self.tile is None:
            mixed: Op = Attention(q, keys.k, keys.v, keys.mask, scale)
        else:
            mixed = TiledAttention(q, keys.k, keys.v, keys.mask, scale, self.tile)
        merged = scope.bind("merged", MergeHeads(scope.bind("mixed", mixed)))
        return self._project(scope, merged, "o", self.architecture.hidden)

    def _values(self, scope: Scope, x: Value) -> Value:
        """V as rows of tokens, normalised in some families and never turned."""
        v = self._project(scope, x, "v", self.spec.kv_heads * self.spec.head_dim)
        v = scope.bind("v_heads", SplitHeads(v, self.spec.kv_heads))
        if self.architecture.norms.value:
            v = scope.bind("v_normed", UnitRmsNorm(v, self.architecture.norms.eps, axis=2))
        return scope.bind("v_rows", TokenRows(v))

    def _heads(self, scope: Scope, x: Value, role: str, heads: int) -> Value:
        """Q or K as rows of tokens, normalised and turned."""
        projected = self._project(scope, x, role, heads * self.spec.head_dim)
        split = scope.bind(f"{role}_heads", SplitHeads(projected, heads))
        if self.architecture.norms.query_key:
            split = self._norm(scope, split, f"{role}_norm", axis=2)
        turned = scope.bind(f"{role}_turned", Rope(split, *self._angles(scope, x.shape[3])))
        return scope.bind(f"{role}_rows", TokenRows(turned))

    def _angles(self, scope: Scope, tokens: int) -> tuple[Value, Value]:
        name = self.spec.rope
        shape = (1, 1, self.architecture.rope(name).width, tokens)
        return (
            scope.input(f"cos_{name}", shape, Source(kind="rope_cos", name=name)),
            scope.input(f"sin_{name}", shape, Source(kind="rope_sin", name=name)),
        )

    def _mlp(self, scope: Scope, x: Value) -> Value:
        width = self.spec.mlp_width
        gate = self._project(scope, x, "gate", width)
        active = scope.bind("active", Activation(gate, self.architecture.activation))
        gated = scope.bind("gated", Mul(active, self._project(scope, x, "up", width)))
        return self._project(scope, gated, "down", self.architecture.hidden)

    def _project(self, scope: Scope, x: Value, role: str, width: int) -> Value:
        weight = scope.weight(f"layers.{self.index}.{role}", (width, x.shape[1]))
        return scope.bind(role, Linear(x, weight))

    def _norm(self, scope: Scope, x: Value, role: str, axis: int = 1) -> Value:
        norms = self.architecture.norms
        gain = scope.weight(f"layers.{self.index}.{role}", (x.shape[axis],), norms.offset)
        return scope.bind(f"{role}ed", RmsNorm(x, gain, norms.eps, axis))
