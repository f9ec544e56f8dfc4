"""From the residual stream to an answer: final norm, logits, and what is told of them."""

from itertools import pairwise

from topoc.dsl.model import Head
from topoc.lowering.architecture import Architecture
from topoc.lowering.build.scope import Scope
from topoc.lowering.ir import Value
from topoc.lowering.manifest import Sink
from topoc.lowering.ops.elementwise import Softcap
from topoc.lowering.ops.head import Argmax, TopK
from topoc.lowering.ops.heads import JoinChannels
from topoc.lowering.ops.linear import Linear
from topoc.lowering.ops.norm import RmsNorm


def normed(scope: Scope, architecture: Architecture, x: Value) -> Value:
    """The final norm."""
    norms = architecture.norms
    gain = scope.weight("norm", (architecture.hidden,), norms.offset)
    return scope.bind("normed", RmsNorm(x, gain, norms.eps, axis=1))


def logits(scope: Scope, architecture: Architecture, x: Value, split: int) -> Value:
    """The logits (1, V, 1, T), the matrix in `split` slices of its rows."""
    capped = architecture.final_softcap is not None
    name = "raw_logits" if capped else "logits"
    role = "embed" if architecture.tied else "head"
    shape = (architecture.vocabulary, architecture.hidden)
    if split == 1:
        found = scope.bind(name, Linear(x, scope.weight(role, shape)))
    else:
        parts = tuple(
            scope.bind(f"{name}_{first}", Linear(x, scope.rows(role, shape, first, stop)))
            for first, stop in slices(architecture.vocabulary, split)
        )
        found = scope.bind(name, JoinChannels(parts))
    if architecture.final_softcap is None:
        return found
    return scope.bind("logits", Softcap(found, architecture.final_softcap))


def slices(rows: int, count: int) -> tuple[tuple[int, int], ...]:
    """Rows in runs that differ by one at most: first row and the one after the last."""
    walls = [rows * nth // count for nth in range(count + 1)]
    return tuple(pairwise(walls))


def answer(scope: Scope, head: Head, found: Value) -> None:
    """The outputs of a head over these logits."""
    if head.mode == "logits":
        scope.output(found, Sink(kind="logits"))
    elif head.mode == "argmax":
        token = scope.bind("token", Argmax(found))
        scope.output(token, Sink(kind="token", probe=found.name))
    else:
        best, ids = scope.bind_all(("topk_logits", "topk_ids"), TopK(found, head.k or 1))
        scope.output(best, Sink(kind="topk_logits"))
        scope.output(ids, Sink(kind="topk_ids"))
