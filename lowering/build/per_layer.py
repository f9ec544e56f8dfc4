"""The part `ple`: per-layer vectors out of a token's embedding and its row of the table."""

from topoc.lowering.architecture import Architecture, PerLayer
from topoc.lowering.build.scope import Scope
from topoc.lowering.ir import Value
from topoc.lowering.manifest import Source
from topoc.lowering.ops.elementwise import Add, Scale
from topoc.lowering.ops.heads import JoinHeads, SplitHeads
from topoc.lowering.ops.linear import Linear
from topoc.lowering.ops.norm import RmsNorm


def combined(scope: Scope, architecture: Architecture, x: Value) -> Value:
    """The vectors of all layers, (1, layers * width, 1, T), from the embedding (1, H, 1, T).

    A norm takes out the factor before it, but for its epsilon: rms(f x, eps) = rms(x, eps / f^2).
    """
    spec, layers = architecture.per_layer, len(architecture.layers)
    assert isinstance(spec, PerLayer)  # noqa: S101 — the part is refused without
    channels = layers * spec.width
    weight = scope.weight("ple.projection", (channels, architecture.hidden))
    projected = scope.bind("ple_projected", Linear(x, weight))
    split = scope.bind("ple_split", SplitHeads(projected, layers))
    norms = architecture.norms
    gain = scope.weight("ple.norm", (spec.width,), norms.offset)
    eps = norms.eps / spec.projection_factor**2
    context = scope.bind("ple_context", RmsNorm(split, gain, eps, axis=2))
    joined = scope.bind("ple_joined", JoinHeads(context))
    shape = (1, channels, 1, x.shape[3])
    rows = scope.input("ple_rows", shape, Source(kind="embedding", name="ple_table"))
    total = scope.bind("ple_sum", Add(joined, rows))
    return scope.bind("ple_combined", Scale(total, spec.combined_factor))
