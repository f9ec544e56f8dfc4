"""Cosine and sine tables of absolute positions."""

from typing import Any

import numpy as np
import numpy.typing as npt

from topoc.lowering.architecture import Rope


def table(rope: Rope, positions: int, dtype: npt.DTypeLike) -> npt.NDArray[Any]:
    """Cosines and sines, (2, positions, width), computed in float64 and rounded once."""
    turned = angles(rope, range(positions))
    return np.stack([np.cos(turned), np.sin(turned)]).astype(dtype)


def angles(rope: Rope, positions: range) -> npt.NDArray[np.float64]:
    """By how much each channel is turned at these positions, (positions, width).

    The two halves of the width repeat each other, as the half-split rotation wants them. Pairs
    that stand still are turned by zero: their cosine is one and their sine zero.
    """
    exponents = np.arange(0, rope.width, 2, dtype=np.float64) / rope.width
    frequencies = rope.theta**-exponents / rope.factor
    if rope.turning is not None:
        frequencies[rope.turning :] = 0.0
    turned = np.asarray(positions, np.float64)[:, None] * frequencies
    return np.concatenate([turned, turned], axis=1)
