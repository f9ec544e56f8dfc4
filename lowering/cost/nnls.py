"""Least squares whose coefficients are not negative, in plain Python.

A cost of less than nothing has no meaning, and a fit that may have one hides what it can't tell
apart. With half a dozen columns every set of positive coefficients can be tried; the best of those
that come out without a negative one is the answer, by definition and not by iteration.
"""

from collections.abc import Sequence
from itertools import combinations

Matrix = list[list[float]]
_SINGULAR = 1e-12  # of a column that is scaled to length one


def solve(rows: Sequence[Sequence[float]], values: Sequence[float]) -> list[float]:
    """The coefficients c >= 0 that make `rows` · c closest to `values`."""
    width = len(rows[0]) if rows else 0
    best, error = [0.0] * width, sum(value * value for value in values)
    for count in range(1, width + 1):
        for chosen in combinations(range(width), count):
            found = _free(rows, values, chosen)
            if found is None or min(found) < 0:
                continue
            full = [0.0] * width
            for at, value in zip(chosen, found, strict=True):
                full[at] = value
            wrong = squares(rows, values, full)
            if wrong < error:
                best, error = full, wrong
    return best


def squares(
    rows: Sequence[Sequence[float]], values: Sequence[float], found: Sequence[float]
) -> float:
    """The sum of squared errors."""
    told = (sum(a * b for a, b in zip(row, found, strict=True)) for row in rows)
    return sum((a - b) ** 2 for a, b in zip(told, values, strict=True))


def uncertainty(rows: Sequence[Sequence[float]], found: Sequence[float]) -> Matrix:
    """The inverse of the normal matrix over the coefficients above zero, zeros elsewhere.

    Times the variance of one value it is the covariance of the coefficients.
    """
    width = len(found)
    free = [at for at in range(width) if found[at] > 0]
    full = [[0.0] * width for _ in range(width)]
    inner = _inverse(_normal(rows, free)) if free else []
    for a, row in zip(free, inner or [], strict=True):
        for b, value in zip(free, row, strict=True):
            full[a][b] = value
    return full


def _free(
    rows: Sequence[Sequence[float]], values: Sequence[float], chosen: Sequence[int]
) -> list[float] | None:
    """Plain least squares over some columns, or None where they can't be told apart."""
    inverse = _inverse(_normal(rows, chosen))
    if inverse is None:
        return None
    right = [sum(row[at] * y for row, y in zip(rows, values, strict=True)) for at in chosen]
    return [sum(a * b for a, b in zip(line, right, strict=True)) for line in inverse]


def _normal(rows: Sequence[Sequence[float]], chosen: Sequence[int]) -> Matrix:
    return [[sum(row[a] * row[b] for row in rows) for b in chosen] for a in chosen]


def _inverse(matrix: Matrix) -> Matrix | None:
    """By Gauss and Jordan with pivots, after scaling to a diagonal of ones."""
    size = len(matrix)
    scale = [matrix[at][at] ** 0.5 for at in range(size)]
    if min(scale, default=1.0) == 0:
        return None
    work = [
        [matrix[a][b] / scale[a] / scale[b] for b in range(size)]
        + [float(a == b) for b in range(size)]
        for a in range(size)
    ]
    for at in range(size):
        pivot = max(range(at, size), key=lambda row: abs(work[row][at]))
        if abs(work[pivot][at]) < _SINGULAR:
            return None
        work[at], work[pivot] = work[pivot], work[at]
        work[at] = [value / work[at][at] for value in work[at]]
        for row in range(size):
            if row != at:
                factor = work[row][at]
                work[row] = [a - factor * b for a, b in zip(work[row], work[at], strict=True)]
    return [[work[a][size + b] / scale[a] / scale[b] for b in range(size)] for a in range(size)]
