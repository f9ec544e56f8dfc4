"""Every rule, by the subjects that it looks at, in the order in which findings are gathered.

A rule is imported when it is asked for: a start of `topoc lint` pays for those that it runs.
"""

from collections.abc import Iterator
from functools import cache
from importlib import import_module

from topoc.dsl.lint.rule import Rule

# On topologies: what can't be, then what won't run, then what differs.
TOPOLOGY = (
    # Who owns what; the later rules take it for granted.
    *("kv.shares-itself", "kv.share-without-owner", "kv.share-across-geometry"),
    "kv.no-own-weights",
    # What is kept, for whom, and when.
    *("kv.donor-forgets", "kv.read-before-produce", "kv.write-unfit-for-store"),
    # Calls of several tokens.
    *("kv.tentative-commit", "kv.batch-over-window", "kv.split-ring", "kv.layouts-disagree"),
    # The author's own budgets.
    "expect.breach",
    # What the Neural Engine takes.
    *("chunk.too-many-layers", "chunk.too-heavy", "chunk.embedding-with-body"),
    *("chunk.side-work-in-big-chunk", "package.too-many-functions"),
    *("state.update", "state.concat-write", "state.more-than-two", "state.unlike-pair"),
    *("state.batch-in-shared-package", "state.exported-view", "state.odd-width"),
    "state.padded-heads",
    *("op.embedding-gather", "op.split-head", "op.argmax-tail", "op.odd-output-width"),
    # What its numbers survive.
    *("quant.activations", "quant.int8-lut", "quant.structured-sparsity", "quant.below-4-bit"),
    *("quant.per-channel-int4", "quant.indivisible-group", "numeric.wide-vocabulary-tie"),
    # What is there for a host alone.
    "features.dead-input",
    # What differs from the checkpoint, and what was tried before.
    *("lossy.narrowed-attention", "lossy.widened-attention", "lossy.shared-kv"),
    *("ledger.revived-verdict", "ledger.stale-verdict"),
)

# On the MIL of a package, ours or another's.
MIL: tuple[str, ...] = (
    # What no compiler takes, or what comes out wrong.
    *("op.rank-over-5", "op.rank-0-io", "op.dynamic-shape", "op.computed-gather", "op.wide-topk"),
    *("state.update", "state.concat-write", "state.more-than-two", "state.unlike-pair"),
    *("state.exported-view", "state.odd-width", "chunk.too-heavy"),
    *("state.stale-read", "op.scatter", "op.while-loop", "op.matmul-scatter", "chunk.too-many-ops"),
    # What leaves the Neural Engine.
    *("op.gqa-5d-broadcast", "op.exp2", "op.mlp-tile", "op.fp32-island", "op.linear-head"),
    *("op.cumsum", "op.rank-5-matmul", "op.depthwise-conv", "op.int64", "op.int16-index"),
    *("op.embedding-gather", "op.rope-gather", "op.argmax-tail", "op.odd-output-width"),
    *("op.wide-axis", "op.off-list"),
    # Compression and numbers.
    *("quant.activations", "quant.blockwise-lut", "quant.int8-lut", "quant.structured-sparsity"),
    *("quant.per-channel-scale", "quant.per-channel-int4", "quant.depthwise"),
    "quant.compressed-table",
    *("numeric.square-overflow", "numeric.subnormal-eps", "numeric.summed-masks"),
    *("numeric.scaled-fused-attention", "op.fp16-position"),
    # The host's interface.
    "features.dead-input",
)

# On the checkpoint that a topology is compiled with.
CHECKPOINT = ("numeric.residual-overflow", "quant.indivisible-group", "quant.low-sqnr")

CODES = tuple(dict.fromkeys((*TOPOLOGY, *MIL, *CHECKPOINT)))


def every() -> Iterator[type[Rule]]:
    """All rules."""
    return map(rule, CODES)


@cache
def rule(code: str) -> type[Rule]:
    """The class in the file that a code names: `state.unlike-pair` is `state/unlike_pair.py`."""
    family, _, name = code.partition(".")
    module = import_module(f"{__name__}.{family}.{name.replace('-', '_')}")
    found: type[Rule] = getattr(module, "".join(map(str.capitalize, name.split("-"))))
    return found
