"""Where each op of a program is expected to run, and what says so. Predictions, never proofs."""

from collections import Counter
from collections.abc import Iterator
from typing import Literal

from attrs import frozen

from topoc.dsl.lint.mil import FLEXIBLE, Function, Op, Package
from topoc.dsl.lint.trace import is_depthwise
from topoc.dsl.plain import Plain

Unit = Literal["ane", "cpu", "unknown"]

# Seen on the Neural Engine in compute plans of Qwen3.5, Gemma 4 and Qwen3-VL (CoreML-LLM
# docs/QWEN35_ROADMAP.md:69-133, docs/THREE_CHUNK_MAC_BENCH.md:57-65, 2026-04, Macs and iPhone 17
# Pro, coremltools 9.0), and what only lays a tensor out anew.
SEEN = frozenset(
    {
        *("conv", "linear", "matmul", "add", "sub", "mul", "real_div", "pow", "rsqrt", "exp"),
        *("reduce_sum", "reduce_mean", "reduce_max", "layer_norm", "softmax"),
        *("sigmoid", "silu", "gelu", "softplus", "tanh", "select"),
        *("reshape", "transpose", "expand_dims", "squeeze", "identity", "concat", "split"),
        *("slice_by_index", "slice_by_size", "slice_update"),
        *("read_state", "write_state", "coreml_update_state"),
    }
)

# Kinds that a rule of their own speaks of, and what it saw.
TOLD: dict[str, tuple[Unit, str]] = {
    "cumsum": ("cpu", "op.cumsum"),
    "while_loop": ("cpu", "op.while-loop"),
    "scatter": ("cpu", "op.scatter"),
    "scatter_nd": ("cpu", "op.scatter"),
    "scatter_along_axis": ("cpu", "op.scatter"),
    "gather": ("cpu", "op.embedding-gather and op.rope-gather"),
    "gather_along_axis": ("cpu", "op.argmax-tail"),
    "gather_nd": ("unknown", "op.computed-gather: it gave zeros there"),
    "reduce_argmax": ("cpu", "op.argmax-tail"),
    "topk": ("unknown", "op.wide-topk"),
    "exp2": ("unknown", "op.exp2: one of three suspects"),
    "quantize": ("unknown", "quant.activations: phones refuse the program"),
    "dequantize": ("unknown", "quant.activations: phones refuse the program"),
    "cast": ("unknown", "casts between fp16 and integers were seen on both"),
}
MOST_AXES = 5
_SEEN_WHY = "seen there in compute plans"
_UNSEEN = "op.off-list: no source saw it there"


@frozen(eq=False, repr=False)
class Expected(Plain):
    """What is expected of one op."""

    unit: Unit
    why: str


@frozen(eq=False, repr=False)
class Row(Plain):
    """Ops of one type in one function of which the same is expected."""

    function: str
    kind: str
    count: int
    unit: Unit
    why: str


def expected(function: Function, op: Op) -> Expected:
    """The unit that is expected to run an op, by what was seen of others like it."""
    told = _by_types(function, op)
    if told is not None:
        return told
    if op.kind == "conv" and is_depthwise(function, op):
        return Expected("unknown", "op.depthwise-conv: seen on both")
    if op.kind in TOLD:
        return Expected(*TOLD[op.kind])
    return Expected("ane", _SEEN_WHY) if op.kind in SEEN else Expected("unknown", _UNSEEN)


def _by_types(function: Function, op: Op) -> Expected | None:
    """What shapes and element types say, for most kinds alike."""
    shapes = [one.type.shape for one in op.outputs]
    if any(FLEXIBLE in one for one in shapes):
        return Expected("cpu", "op.dynamic-shape")
    if any(len(one) > MOST_AXES for one in shapes):
        return Expected("unknown", "op.rank-over-5: Core ML takes no such tensor")
    dtypes = {one.type.dtype for one in op.outputs}
    if op.kind == "cast":
        dtypes |= {function.type_of(name).dtype for name in op.names}
    if "fp32" in dtypes:
        return Expected("cpu", "op.fp32-island: fp32 leaves the Neural Engine")
    if op.kind == "matmul" and op.type.rank >= MOST_AXES:
        return Expected("cpu", "op.rank-5-matmul")
    return None


def table(package: Package) -> Iterator[Row]:
    """The compute ops of each function by type and expectation, the most frequent first."""
    for function in package.functions:
        counts: Counter[tuple[str, Unit, str]] = Counter()
        for op in function.compute:
            found = expected(function, op)
            counts[op.kind, found.unit, found.why] += 1
        for (kind, unit, why), count in sorted(counts.items(), key=lambda one: (-one[1], one[0])):
            yield Row(function.name, kind, count, unit, why)
