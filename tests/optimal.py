"""The least squared error of a clustering in one dimension, exactly; the oracle of palettization.

Dynamic programming over the sorted values. The best start of the last cluster never moves left when
its end moves right, so each layer is solved by halving: O(clusters · n · log n).
"""

import numpy as np


def centres(values, masses, clusters):
    """The means of the clusters in a clustering of least squared error."""
    order = np.argsort(values, kind="stable")
    values, masses = values[order].astype(np.float64), masses[order].astype(np.float64)
    if len(values) <= clusters:
        return values
    sums = _Sums(values, masses)
    cost = sums.cost(np.zeros(len(values), np.int64), np.arange(1, len(values) + 1))
    starts = []
    for _ in range(1, clusters):
        cost, start = _layer(np.concatenate([[0.0], cost]), sums)
        starts.append(start)
    end, found = len(values), []
    for start in reversed(starts):
        begin = start[end - 1]
        found.append(sums.mean(begin, end))
        end = begin
    found.append(sums.mean(0, end))
    return np.array(found[::-1])


def error(values, masses, entries):
    """The squared error of values that take the nearest of some entries."""
    entries = np.unique(entries.astype(np.float64))
    at = np.searchsorted((entries[1:] + entries[:-1]) / 2.0, values.astype(np.float64))
    return float((masses * (values.astype(np.float64) - entries[at]) ** 2).sum())


def least(numbers, clusters, weights=None):
    """The error of the best clustering of fp16 numbers, its centres rounded to fp16."""
    values, at = np.unique(numbers.reshape(-1), return_inverse=True)
    masses = np.bincount(at.reshape(-1), None if weights is None else weights.reshape(-1))
    best = centres(values, masses, clusters)
    return error(values, masses, best.astype(np.float16))


class _Sums:
    """Running sums about the median, so that numbers far from zero lose no digits."""

    def __init__(self, values, masses):
        self.middle = values[len(values) // 2]
        about = values - self.middle
        self.sums = [np.concatenate([[0.0], np.cumsum(masses * about**p)]) for p in range(3)]

    def cost(self, begin, end):
        mass, first, second = (one[end] - one[begin] for one in self.sums)
        return np.maximum(second - first**2 / np.where(mass > 0, mass, 1.0), 0.0)

    def mean(self, begin, end):
        mass, first = (one[end] - one[begin] for one in self.sums[:2])
        return self.middle + first / mass


def _layer(before, sums):
    """The least cost of ends 1..n with one cluster more, and where that cluster begins."""
    n = len(before) - 1
    cost, start = np.empty(n), np.zeros(n, np.int64)
    todo = [(np.array([0]), np.array([n]), np.array([0]), np.array([n - 1]))]
    while todo:
        low, high, least_start, most_start = todo.pop()
        keep = low < high
        low, high, least_start, most_start = (
            one[keep] for one in (low, high, least_start, most_start)
        )
        if not len(low):
            continue
        middle = (low + high) // 2
        count = np.minimum(most_start, middle) - least_start + 1
        offset = np.cumsum(count) - count
        begin = np.arange(count.sum()) - np.repeat(offset - least_start, count)
        ways = before[begin] + sums.cost(begin, np.repeat(middle + 1, count))
        best = np.minimum.reduceat(ways, offset)
        hit = np.flatnonzero(ways == np.repeat(best, count))
        first = hit[np.searchsorted(hit, offset)]
        cost[middle], start[middle] = best, begin[first]
        todo.append(
            (
                np.concatenate([low, middle + 1]),
                np.concatenate([middle, high]),
                np.concatenate([least_start, begin[first]]),
                np.concatenate([begin[first], most_start]),
            )
        )
    return cost, start
