"""Emitters of attention."""

from attrs import frozen

from topoc.lowering.emit.mil.environment import Environment, Given, emits
from topoc.lowering.emit.mil.var import Var
from topoc.lowering.ops.attention import Attention, TiledAttention

START = -3.0e4
"""The least that an online softmax takes for the greatest score: finite, so that a tile of minus
infinities leaves no NaN, and far below a score that the default fill of masks (-1e4) hides."""


@emits(Attention)
def attention(op: Attention, env: Environment) -> Var:
    """Grouped queries without a fifth axis: the query heads of one KV head become its rows.

    Heads (1, G * R, T, D) and (1, G, R * T, D) hold the same elements in the same order, so KV
    heads are never repeated; the mask, which all heads share, is added where heads stand alone.
    """
    _, heads, tokens, width = op.q.shape
    _, groups, slots, _ = op.k.shape
    rows = heads // groups * tokens
    q = env.op("reshape", part="q", x=env[op.q], shape=(1, groups, rows, width))
    scores = env.op("matmul", part="scores", x=q, y=env[op.k], transpose_x=False, transpose_y=True)
    if op.scale != 1.0:
        scores = env.op("mul", part="scaled", x=scores, y=op.scale)
    scores = env.op("reshape", part="by_head", x=scores, shape=(1, heads, tokens, slots))
    masked = env.op("add", part="masked", x=scores, y=env[op.mask])
    weights = env.op("softmax", part="weights", x=masked, axis=-1)
    weights = env.op("reshape", part="by_group", x=weights, shape=(1, groups, rows, slots))
    mixed = env.op(
        "matmul", part="mixed", x=weights, y=env[op.v], transpose_x=False, transpose_y=False
    )
    return env.op("reshape", x=mixed, shape=op.result_type().shape)


@emits(TiledAttention)
def tiled_attention(op: TiledAttention, env: Environment) -> Var:
    """A matmul pair for each tile of keys, and a softmax that is corrected from tile to tile.

    Queries are grouped as in `attention`, and stay so until the end.
    """
    _, heads, tokens, width = op.q.shape
    _, groups, slots, _ = op.k.shape
    rows = heads // groups * tokens
    q = env.op("reshape", part="q", x=env[op.q], shape=(1, groups, rows, width))
    walked: _Walked | None = None
    for number, first in enumerate(range(0, slots, op.tile)):
        tile = _Tile(op, env, f"t{number}", first, min(op.tile, slots - first))
        walked = tile.begin(q) if walked is None else tile.go_on(q, walked)
    assert walked is not None  # noqa: S101  # there is a slot
    return env.op("reshape", x=walked.mixed, shape=op.result_type().shape)


@frozen
class _Walked:
    """The result over the tiles so far, all of it by group: (1, G, R * T, 1 or D).

    `mixed` is normalised: it is no larger than the values that it mixes, whatever fp16 holds.
    """

    peak: Var  # the greatest score
    total: Var  # the sum of exp(score - peak)
    mixed: Var


@frozen
class _Tile:
    """Keys `first` to `first + size` of a walk."""

    attention: TiledAttention
    env: Environment
    name: str
    first: int
    size: int

    def begin(self, q: Var) -> _Walked:
        """The first tile; a total counts its own peak as one, so one is no more than any total.

        Only where all scores lie below `START` is the total less: then nothing is mixed in.
        """
        scores = self._scores(q)
        peak = self._op("maximum", "peak", x=self._greatest(scores), y=START)
        odds = self._odds(scores, peak)
        total = self._op("maximum", "total", x=self._sum(odds), y=1.0)
        return _Walked(peak, total, self._mixed(odds, total))

    def go_on(self, q: Var, before: _Walked) -> _Walked:
        """A later tile: what was before counts by how far the peak has risen."""
        scores = self._scores(q)
        peak = self._op("maximum", "peak", x=before.peak, y=self._greatest(scores))
        odds = self._odds(scores, peak)
        fall = self._op("exp", "fall", x=self._op("sub", "rise", x=before.peak, y=peak))
        old = self._op("mul", "old", x=before.total, y=fall)
        total = self._op("add", "total", x=old, y=self._sum(odds))
        share = self._op("real_div", "share", x=old, y=total)
        kept = self._op("mul", "kept", x=before.mixed, y=share)
        return _Walked(peak, total, self._op("add", "all", x=kept, y=self._mixed(odds, total)))

    def _scores(self, q: Var) -> Var:
        """Masked scores, (1, G, R * T, size)."""
        op = self.attention
        (_, heads, tokens, _), (_, groups, _, width) = op.q.shape, op.k.shape
        k = self._cut("k", self.env[op.k], 2, (1, groups, self.size, width))
        scores = self._op("matmul", "scores", x=q, y=k, transpose_x=False, transpose_y=True)
        if op.scale != 1.0:
            scores = self._op("mul", "scaled", x=scores, y=op.scale)
        scores = self._op("reshape", "by_head", x=scores, shape=(1, heads, tokens, self.size))
        mask = self._cut("mask", self.env[op.mask], 3, (1, 1, tokens, self.size))
        masked = self._op("add", "masked", x=scores, y=mask)
        rows = heads // groups * tokens
        return self._op("reshape", "by_group", x=masked, shape=(1, groups, rows, self.size))

    def _mixed(self, odds: Var, total: Var) -> Var:
        _, groups, _, width = self.attention.v.shape
        v = self._cut("v", self.env[self.attention.v], 2, (1, groups, self.size, width))
        weights = self._op("real_div", "weights", x=odds, y=total)
        return self._op("matmul", "mixed", x=weights, y=v, transpose_x=False, transpose_y=False)

    def _greatest(self, scores: Var) -> Var:
        return self._op("reduce_max", "greatest", x=scores, axes=(3,), keep_dims=True)

    def _odds(self, scores: Var, peak: Var) -> Var:
        return self._op("exp", "odds", x=self._op("sub", "below", x=scores, y=peak))

    def _sum(self, odds: Var) -> Var:
        return self._op("reduce_sum", "sum", x=odds, axes=(3,), keep_dims=True)

    def _cut(self, part: str, x: Var, axis: int, size: tuple[int, ...]) -> Var:
        begin = tuple(self.first if at == axis else 0 for at in range(4))
        return self._op("slice_by_size", part, x=x, begin=begin, size=size)

    def _op(self, kind: str, part: str, **arguments: Given) -> Var:
        return self.env.op(kind, part=f"{self.name}_{part}", **arguments)
