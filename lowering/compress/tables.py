"""Look-up tables of fp16 numbers, and which entry each fp16 number is nearest to."""

import numpy as np
from numpy.typing import NDArray

from topoc.lowering.compress.histogram import CODES, Codes, Floats

HALF = CODES // 2
Table = NDArray[np.float16]
Indices = NDArray[np.uint8]
INT8 = 127


def table(centres: Floats, entries: int) -> Table:
    """Ascending entries, each the fp16 number nearest to a centre; the last repeats to the end."""
    rounded = np.unique(centres.astype(np.float16) + np.float16(0.0))  # -0 becomes 0
    return np.concatenate([rounded, np.repeat(rounded[-1:], entries - len(rounded))])


def byte_table(centres: Floats, entries: int) -> tuple[NDArray[np.int8], np.float16]:
    """Ascending entries as int8, and the scale that makes numbers of them."""
    scale = scale_for(float(np.abs(centres).max()), INT8)
    steps = np.unique(np.clip(np.rint(centres / float(scale)), -INT8, INT8)).astype(np.int8)
    return np.concatenate([steps, np.repeat(steps[-1:], entries - len(steps))]), scale


def scale_for(peak: float, levels: int) -> np.float16:
    """The fp16 step with which `levels` steps reach a peak; 1 where there is none.

    A subnormal step is rounded up: rounded down it could miss the peak by a large part.
    """
    if peak == 0.0:
        return np.float16(1.0)
    step = np.float16(peak / levels)
    if float(step) < float(np.finfo(np.float16).smallest_normal) and float(step) * levels < peak:
        step = np.nextafter(step, np.float16(np.inf))
    return step


def by_code(entries: Table) -> Indices:
    """The index of the nearest entry for each fp16 code; between two, the lower one: [65536]."""
    upto = np.concatenate([_ranks(entries), [2 * HALF]])
    positive = np.clip(upto - HALF, 0, HALF)
    negative = np.clip(upto, 0, HALF)
    index = np.arange(len(entries), dtype=np.uint8)
    return np.concatenate(
        [
            np.repeat(index, np.diff(positive, prepend=0)),
            np.repeat(index[::-1], np.diff(negative, prepend=0)[::-1]),
        ]
    )


def _ranks(entries: Table) -> NDArray[np.int64]:
    """How many codes, in the order of their numbers, are nearest to each entry or one before it."""
    wide = entries.astype(np.float64)
    middle = (wide[1:] + wide[:-1]) / 2.0
    below = middle.astype(np.float16)
    below = np.where(below > middle, np.nextafter(below, np.float16(-np.inf)), below)
    below += np.float16(0.0)  # of the two zeros the positive one is the last
    codes = below.view(np.uint16).astype(np.int64)
    ranks: NDArray[np.int64] = np.where(codes < HALF, codes + HALF, 2 * HALF - 1 - codes)
    return ranks + 1


def look_up(index: Indices, codes: Codes, out: Indices) -> None:
    """The entry of each code, into `out`; both of one shape."""
    np.take(index, codes, mode="clip", out=out)
