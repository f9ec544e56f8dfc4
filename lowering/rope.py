"""Cosine and sine tables of absolute positions."""

from typing import Any

import numpy as np
import numpy.typing as npt

from topoc.lowering.architecture import Rope


def table(rope: Rope, positions: int, dtype: npt.DTypeLike) -> npt.NDArray[Any]:
    """Cosines and sines, (2, positions, width), computed in float64 and rounded once.

    The two halves of the width repeat each other, as the half-split rotation wants them. Pairs
    that stand still keep cosine one and sine zero.
    """
    exponents = np.arange(0, rope.width, 2, dtype=np.float64) / rope.width
    frequencies = rope.theta**-exponents / rope.factor
    if rope.turning is not None:
        frequencies[rope.turning :] = 0.0
    angles = np.arange(positions, dtype=np.float64)[:, None] * frequencies
    both = np.concatenate([angles, angles], axis=1)
    return np.stack([np.cos(both), np.sin(both)]).astype(dtype)
