"""Cluster edges moved together, each among a few places near where it is, as long as that helps.

A move of an edge changes the error by two kinds of terms: one of the edge alone, for what changes
sides, and one of each cluster between two edges, for the shift of its mean. Both are small
differences, so that float32 is enough, and the best combination is found by dynamic programming.
"""

import numpy as np
from attrs import Attribute, field, frozen
from numpy.typing import NDArray

from topoc.lowering.compress.bins import Bins, Complex, between
from topoc.lowering.compress.histogram import Floats, Index

TOGETHER = 1 << 16  # pairs of places that fit the processor's cache
Singles = NDArray[np.float32]
LEAST = np.float32(0.5)  # mass is whole, so that less than this is none


@frozen
class Round:
    """Edges move by up to `reach` steps of 1/`parts` of the cluster on that side."""

    parts: int
    reach: int = field()

    @reach.validator
    def _meets_no_other(self, _: "Attribute[int]", reach: int) -> None:
        """No edge can overtake the next, if each goes half the way to it at the most."""
        if 2 * reach > self.parts:
            message = f"{reach} steps of 1/{self.parts} are more than half a cluster"
            raise ValueError(message)


def improved(bins: Bins, edges: Index, how: Round) -> Index:
    """Edges with no greater error: [clusters + 1, groups]."""
    before = bins.moments_at(edges)
    inside = between(before)
    means = inside.imag / np.maximum(inside.real, LEAST)
    places = _places(edges, how)
    moved = bins.moments_at(places)
    moves = _Moves.of(
        moved.real - before.real[1:-1, None], moved.imag - before.imag[1:-1, None], means
    )
    chosen = _chosen(moves, inside.real.astype(np.float32))
    found = edges.copy()
    count, many, groups = places.shape
    row = np.arange(count)[:, None] * many + chosen
    found[1:-1] = places.take(row * groups + np.arange(groups))
    better = gain(bins, found) > _gain(inside)
    return found if better.all() else np.where(better, found, edges)


def gain(bins: Bins, edges: Index) -> Floats:
    """By how much clusters lower the squared sum of the values: [groups]."""
    return _gain(between(bins.moments_at(edges)))


def _gain(inside: Complex) -> Floats:
    found: Floats = (inside.imag**2 / np.maximum(inside.real, LEAST)).sum(0)
    return found


def _places(edges: Index, how: Round) -> Index:
    """Where each inner edge may go: [inner edges, places, groups]."""
    width = between(edges).astype(np.int32)  # whose division is quicker
    steps = np.arange(1, how.reach + 1, dtype=np.int32)[:, None]
    moves = steps * width[:, None] // np.int32(how.parts)
    stay = np.zeros_like(moves[1:, :1])
    found: Index = edges[1:-1, None] + np.concatenate([-moves[:-1, ::-1], stay, moves[1:]], axis=1)
    return found


@frozen
class _Moves:
    """What moves of edges change: [inner edges, places, groups]."""

    alone: Singles  # the error by what changes sides
    taken: Singles  # mass that an edge takes from the right
    left: Singles  # its deviation from the mean of the cluster before the edge, summed
    right: Singles  # and from that of the one behind it

    @classmethod
    def of(cls, mass: Floats, first: Floats, means: Floats) -> "_Moves":
        """Of the mass that changes sides, and its first moment, between clusters of these means."""
        left = (first - means[:-1, None] * mass).astype(np.float32)
        right = (first - means[1:, None] * mass).astype(np.float32)
        gap = between(means).astype(np.float32)
        return cls((left + right) * gap[:, None], mass.astype(np.float32), left, right)


def _chosen(moves: _Moves, size: Singles) -> Index:
    """The place of each inner edge in the best combination: [inner edges, groups]."""
    edges, places, groups = moves.taken.shape
    path = moves.alone[0] - _ends(moves.left[0], moves.taken[0], size[0])
    ways = np.empty((edges, places, places, groups), np.float32)
    step = max(1, TOGETHER // ways[0].size)
    for first in range(1, edges, step):
        last = min(first + step, edges)
        _gains(ways[first:last], moves, size, first)
        for k in range(first, last):  # to each edge's places from those of the one before
            np.subtract(path[:, None], ways[k], out=ways[k])
            path = np.minimum.reduce(ways[k], 0)
            path += moves.alone[k]
    path -= _ends(moves.right[-1], -moves.taken[-1], size[-1])
    return _traced(ways, path)


def _gains(out: Singles, moves: _Moves, size: Singles, first: int) -> None:
    """What shifts of the means gain of the clusters before some edges, from the first one on.

    For all places of both ends: [edges, places of the edge before, places of the edge, groups].
    """
    here, before = slice(first, first + len(out)), slice(first - 1, first + len(out) - 1)
    end = moves.taken[here] + size[here, None]
    mass = end[:, None] - moves.taken[before][:, :, None]
    np.maximum(mass, LEAST, out=mass)
    np.subtract(moves.left[here][:, None], moves.right[before][:, :, None], out=out)
    np.square(out, out=out)
    out /= mass


def _ends(sums: Singles, masses: Singles, size: Singles) -> Singles:
    """What the shift of the first or last cluster's mean gains: [places, groups]."""
    found: Singles = sums * sums / np.maximum(size + masses, LEAST)
    return found


def _traced(ways: Singles, last: Singles) -> Index:
    """The places on the way to the best of the last edge's: [inner edges, groups]."""
    edges, places, _, groups = ways.shape
    before = np.arange(places) * (places * groups) + np.arange(groups)[:, None]
    chosen = np.empty((edges, groups), np.int64)
    chosen[-1] = last.argmin(0)
    for k in range(edges - 1, 0, -1):
        chosen[k - 1] = ways[k].take(before + chosen[k][:, None] * groups).argmin(1)
    return chosen
