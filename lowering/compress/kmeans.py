"""Near-optimal clusters of fp16 numbers, one set a group, for a batch of groups at once.

The steps: a histogram of codes; bins over it (`bins`); the best clustering of coarse bins
(`coarse`); edges moved at ever smaller steps (`local`). What does not fit a batch is found by two
figures, and done again more finely: the error that bins hide, and clusters unlike the others.
"""

from collections.abc import Iterator

import numpy as np
from attrs import frozen

from topoc.lowering.compress import bins, coarse, local
from topoc.lowering.compress.bins import Bins, between
from topoc.lowering.compress.coarse import Grid
from topoc.lowering.compress.histogram import (
    CODES,
    Floats,
    Histogram,
    Index,
    cell_values,
)
from topoc.lowering.compress.local import Round

HIDDEN = 0.001  # of a group's error; above it the group gets bins of its own
UNLIKE = 8.0  # a cluster's error against the mean; above it all clusterings are searched
TOGETHER = 1 << 20  # bins of all groups that are searched together, a memory that can be reused
APART = 16  # groups that are done again together
SPAN = 4.0  # of their scales
FINEST = 16384  # bins of a group alone
FEW = 8  # occupied bins a cluster; below it every occupied bin is a place of its own
DENSE, WIDEST = 1024, 256  # coarse bins of a search for one group, and of its widest cluster


@frozen
class Effort:
    """How finely a batch is searched, for a number of bits."""

    shift: int  # low bits of a code that are dropped
    bins: int
    grid: Grid
    again: Grid  # of a second look
    rounds: tuple[Round, ...]


_ROUNDS = Round(16, 6), Round(40, 4)
EFFORTS = {
    1: Effort(2, 1024, Grid(64, 64, 64), Grid(64, 64, 64), _ROUNDS),
    2: Effort(2, 768, Grid(64, 48, 64), Grid(64, 48, 64), (Round(20, 4), Round(60, 4))),
    3: Effort(2, 1024, Grid(96, 48, 96), Grid(96, 48, 96), _ROUNDS),
    4: Effort(3, 1536, Grid(192, 24, 24), Grid(768, 64, 192), (Round(10, 5), Round(40, 3))),
    6: Effort(1, 5120, Grid(640, 26, 40), Grid(768, 36, 72), (Round(10, 5), Round(30, 5))),
    8: Effort(0, 16384, Grid(1280, 20, 64), Grid(1280, 20, 64), _ROUNDS),
}


@frozen
class Clusters:
    """Some groups' centres, and which groups need another look."""

    centres: Floats  # [clusters, groups]; NaN where a cluster is empty
    again: Index


def first_look(histogram: Histogram, bits: int) -> Clusters:
    """Centres for a batch, and the groups whose bins or codes are too coarse."""
    effort = EFFORTS[bits]
    shared = bins.cut(histogram, effort.bins)
    step = max(1, TOGETHER // effort.bins)
    centres, again = [], []
    for at in range(0, histogram.groups, step):
        made = shared.bins(histogram, slice(at, at + step))
        edges = _edges(made, bits, effort.grid)
        centres.append(_centres(made, edges))
        again.append(at + _doubtful(made, edges, bits))
    return Clusters(np.concatenate(centres, axis=1), np.concatenate(again))


def second_look(histogram: Histogram, bits: int) -> Floats:
    """Centres of groups that failed the first look, from histograms of whole codes."""
    centres = np.full((1 << bits, histogram.groups), np.nan)
    masses = histogram.masses()
    sizes = np.abs(cell_values(0))
    size = np.array([(one * sizes).sum() / one.sum() for one in masses])
    many = _distinct(masses)
    for group in np.flatnonzero(many <= 1 << bits):
        exact = np.unique(cell_values(0)[masses[group] > 0])
        centres[: len(exact), group] = exact
    for search, some in (
        (_searched, np.flatnonzero((many > 1 << bits) & (many <= FEW << bits))),
        (_finer, np.flatnonzero(many > FEW << bits)),
    ):
        for part in _alike(some, size):
            centres[:, part] = search(histogram.of(part), bits)
    return centres


def _alike(groups: Index, size: Floats) -> Iterator[Index]:
    """Runs of groups of like scale, which can share bins."""
    order = groups[np.argsort(size[groups], kind="stable")]
    while len(order):
        many = int(np.searchsorted(size[order], SPAN * size[order[0]], side="right"))
        part, order = np.split(order, [min(many, APART)])
        yield part


def _distinct(masses: Floats) -> Index:
    """How many numbers each group holds; the two zeros are one."""
    present = masses > 0
    found: Index = present.sum(1) - (present[:, 0] & present[:, CODES // 2])
    return found


def _searched(histogram: Histogram, bits: int) -> Floats:
    """Centres of groups with few numbers, among all clusterings of those."""
    made = bins.make(histogram, CODES)
    edges = coarse.exact_edges(made, 1 << bits)
    return _centres(made, edges)


def _finer(histogram: Histogram, bits: int) -> Floats:
    """Centres of groups of like scale, with bins for these only."""
    made = bins.make(histogram, FINEST)
    edges = _edges(made, bits, EFFORTS[bits].again)
    centres = _centres(made, edges)
    if histogram.groups > 1:
        for group in _doubtful(made, edges, bits):
            centres[:, group] = _alone(histogram.of(np.array([group])), bits)[:, 0]
    return centres


def _alone(histogram: Histogram, bits: int) -> Floats:
    """Centres of one group, also sought among wider clusters and farther from the even places."""
    made = bins.make(histogram, FINEST)
    usual = _edges(made, bits, EFFORTS[bits].again)
    wide = _edges(made, bits, Grid(DENSE, WIDEST, DENSE))
    better = local.gain(made, wide) > local.gain(made, usual)
    return _centres(made, np.where(better, wide, usual))


def _edges(made: Bins, bits: int, grid: Grid) -> Index:
    edges = coarse.edges(made, 1 << bits, grid)
    for one in EFFORTS[bits].rounds:
        edges = local.improved(made, edges, one)
    return edges


def _centres(made: Bins, edges: Index) -> Floats:
    inside = between(made.moments_at(edges))
    empty = inside.real < local.LEAST
    centres: Floats = inside.imag / np.where(empty, 1.0, inside.real)
    return np.where(empty, np.nan, centres)


def _doubtful(made: Bins, edges: Index, bits: int) -> Index:
    """Groups whose error the bins hide a part of, or whose clusters are unlike each other."""
    inside = between(made.moments_at(edges))
    squares = between(made.squares_at(edges))
    errors = np.maximum(squares - inside.imag**2 / np.maximum(inside.real, local.LEAST), 0.0)
    total = errors.sum(0)
    hides = made.hidden > HIDDEN * total
    unlike = errors.max(0) * (1 << bits) > UNLIKE * total
    few = made.occupied.sum(1) <= FEW << bits
    return np.flatnonzero(hides | unlike | few)
