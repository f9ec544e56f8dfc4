"""Cluster edges moved together, each among a few places near where it is, as long as that helps.

A move of an edge changes the error by two kinds of terms: one of the edge alone, for what changes
sides, and one of each cluster between two edges, for the shift of its mean. Both are small
differences, so that float32 is enough, and the best combination is found by dynamic programming.
"""

import numpy as np
import torch
from attrs import frozen

from topoc.lowering.compress.bins import Bins, Complex
from topoc.lowering.compress.histogram import Floats, Index

LEAST = 0.5  # mass is whole, so that less than this is none


@frozen
class Round:
    """Edges move by up to `reach` steps of 1/`parts` of the cluster on that side."""

    parts: int
    reach: int

    @property
    def may_cross(self) -> bool:
        """Whether one edge could overtake the next."""
        return 2 * self.reach > self.parts


def improved(bins: Bins, edges: Index, how: Round) -> Index:
    """Edges with no greater error: [clusters + 1, groups]."""
    before = bins.moments_at(edges)
    inside = np.diff(before, axis=0)
    means = inside.imag / np.maximum(inside.real, LEAST)
    places = _places(edges, how)
    moved = bins.moments_at(places) - before[1:-1, None]
    chosen = _chosen(moved, means, inside.real, _penalty(bins, how))
    found = edges.copy()
    found[1:-1] = np.take_along_axis(places, chosen[:, None], axis=1)[:, 0]
    found = np.maximum.accumulate(found, axis=0)
    better = gain(bins, found) > gain(bins, edges)
    return np.where(better, found, edges)


def gain(bins: Bins, edges: Index) -> Floats:
    """By how much clusters lower the squared sum of the values: [groups]."""
    inside = np.diff(bins.moments_at(edges), axis=0)
    found: Floats = (inside.imag**2 / np.maximum(inside.real, LEAST)).sum(0)
    return found


def _places(edges: Index, how: Round) -> Index:
    """Where each inner edge may go: [inner edges, places, groups]."""
    width = np.diff(edges, axis=0)
    step = np.arange(-how.reach, how.reach + 1)[None, :, None]
    side = np.where(step < 0, width[:-1, None], width[1:, None])
    moves = np.sign(step) * (np.abs(step) * side // how.parts)
    places: Index = np.clip(edges[1:-1, None] + moves, 0, edges[-1])
    return places


def _penalty(bins: Bins, how: Round) -> torch.Tensor | None:
    """More than a crossing could seem to gain, a unit of mass: [groups]."""
    if not how.may_cross:
        return None
    total = bins.squares[:, -1]
    return torch.from_numpy(2.0 * total).float()


def _chosen(moved: Complex, means: Floats, mass: Floats, penalty: torch.Tensor | None) -> Index:
    """The place of each inner edge in the best combination: [inner edges, groups]."""
    gap = np.diff(means, axis=0)[:, None]
    middle = (means[1:] + means[:-1])[:, None] / 2.0
    alone = _single(2.0 * gap * (moved.imag - middle * moved.real))
    taken = _single(moved.real)  # mass that an edge takes from the right
    left = _single(moved.imag - means[:-1, None] * moved.real)  # seen from the cluster before it
    right = _single(moved.imag - means[1:, None] * moved.real)  # and from the one behind it
    size = _single(mass)
    paths = [alone[0] + _ends(left[0], taken[0], size[0])]
    pair = _Pairs(size, taken, left, right, penalty)
    for k in range(1, len(alone)):
        cost = pair.cost(k, slice(None))
        paths.append(alone[k] + cost.add_(paths[-1][:, None]).amin(0))
    last = paths[-1] + _ends(right[-1], -taken[-1], size[-1])
    chosen = np.empty((len(alone), last.shape[1]), np.int64)
    chosen[-1] = last.numpy().argmin(0)
    for k in range(len(alone) - 1, 0, -1):
        cost = pair.cost(k, torch.from_numpy(chosen[k]))
        chosen[k - 1] = (cost + paths[k - 1]).numpy().argmin(0)
    return chosen


def _single(values: Floats) -> torch.Tensor:
    return torch.from_numpy(values).float()


def _ends(sums: torch.Tensor, masses: torch.Tensor, size: torch.Tensor) -> torch.Tensor:
    """What the shift of the first or last cluster's mean gains: [places, groups]."""
    return -sums.square() / (size + masses).clamp_min_(LEAST)


@frozen
class _Pairs:
    """The gain of each cluster by the shift of its mean, for all places of both its edges."""

    size: torch.Tensor
    taken: torch.Tensor
    left: torch.Tensor
    right: torch.Tensor
    penalty: torch.Tensor | None

    def cost(self, k: int, at: "slice | torch.Tensor") -> torch.Tensor:
        """Of the cluster between edges k - 1 and k: [places, places, groups].

        Where the place of edge k is given for each group: [places, groups].
        """
        end, sums = self.taken[k] + self.size[k], self.left[k]
        if isinstance(at, torch.Tensor):
            end, sums = end.gather(0, at[None])[0], sums.gather(0, at[None])[0]
            begin, lost = self.taken[k - 1], self.right[k - 1]
        else:
            begin, lost = self.taken[k - 1][:, None], self.right[k - 1][:, None]
        mass = end - begin
        shift = (sums - lost).square_()
        over = None if self.penalty is None else mass.clamp_max(0.0).mul_(self.penalty)
        shift.div_(mass.clamp_min_(LEAST)).neg_()
        return shift if over is None else shift.sub_(over)
