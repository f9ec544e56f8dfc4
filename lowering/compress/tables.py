"""Look-up tables of fp16 numbers, and which entry each fp16 number is nearest to."""

import numpy as np
import torch
from attrs import frozen
from numpy.typing import NDArray

from topoc.lowering.compress.histogram import CODES, Codes, Floats

HALF = CODES // 2
Tables = NDArray[np.float16]
Indices = NDArray[np.uint8]
INT8 = 127
FEW = 8  # entries among which comparing is quicker than looking up
PIECE = 1 << 16  # codes at once, whose places fit the processor's cache


def rounded(centres: Floats) -> Tables:
    """Ascending tables of the fp16 numbers nearest to the centres: [groups, entries].

    `centres` are [entries, groups], NaN where there is none; the greatest stands there too.
    """
    entries = centres.T.astype(np.float16) + np.float16(0.0)  # -0 becomes 0
    return np.sort(np.fmin(entries, np.nanmax(entries, axis=1, keepdims=True)), axis=1)


def stepped(centres: Floats) -> tuple[NDArray[np.int8], NDArray[np.float16]]:
    """The same as whole steps of a scale: [groups, entries] and [groups]."""
    centres = centres.T
    scales = np.array([scale_for(peak, INT8) for peak in np.nanmax(np.abs(centres), axis=1)])
    steps = np.clip(np.rint(centres / scales[:, None].astype(np.float64)), -INT8, INT8)
    steps = np.sort(np.fmin(steps, np.nanmax(steps, axis=1, keepdims=True)), axis=1)
    return steps.astype(np.int8), scales


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


@frozen
class Nearest:
    """The nearest entry of each fp16 code in the tables of a batch; between two, the lower one."""

    _upto: NDArray[np.int64]
    """Codes up to the last one of each entry, in the order of their numbers: [groups, entries]."""
    _runs: NDArray[np.int64]
    """Codes of each entry, in their own order: positive ones, and negative ones backwards."""
    _order: Indices  # the entries of the runs

    @classmethod
    def to(cls, tables: Tables) -> "Nearest":
        """To the entries of ascending tables: [groups, entries]."""
        upto = np.concatenate([_ranks(tables), np.full((len(tables), 1), CODES)], axis=1)
        positive = np.diff(np.maximum(upto - HALF, 0), prepend=0)
        negative = np.diff(np.minimum(upto, HALF), prepend=0)
        order = np.arange(upto.shape[1], dtype=np.uint8)
        runs = np.concatenate([positive, negative[:, ::-1]], axis=1)
        return cls(upto, runs, np.concatenate([order, order[::-1]]))

    def write(self, out: Indices, at: int, codes: Codes) -> None:
        """The index of each of the codes in its group's table; `at` is the first one's group.

        Both are [groups, weights].
        """
        if self._upto.shape[1] <= FEW:
            for group, (into, some) in enumerate(zip(out, codes, strict=True), at):
                _compare(into, self._upto[group], some)
            return
        room = np.empty(min(PIECE, codes.shape[1]), np.int32)  # once, for fresh memory is slow
        for group, (into, some) in enumerate(zip(out, codes, strict=True), at):
            self._look_up(into, group, some, room)

    def _look_up(self, out: Indices, group: int, codes: Codes, room: NDArray[np.int32]) -> None:
        """By the index of each of all codes in the group's table."""
        table = torch.from_numpy(np.repeat(self._order, self._runs[group]))
        for start in range(0, len(codes), PIECE):
            part = codes[start : start + PIECE]
            places = room[: len(part)]
            places[:] = part
            into = torch.from_numpy(out[start : start + PIECE])
            torch.index_select(table, 0, torch.from_numpy(places), out=into)


def _compare(out: Indices, upto: NDArray[np.int64], codes: Codes) -> None:
    """By how many of the entries before the last one a code lies behind.

    Among positive codes the sign is of use, and among negative ones, which run backwards, its lack.
    """
    limits = upto[:-1, None]
    below = (CODES - limits[limits <= HALF]).astype(np.uint16)[:, None]
    above = (limits[limits > HALF] - HALF).astype(np.int16)[:, None]
    room = np.empty((len(limits), min(PIECE, len(codes))), np.bool_)
    for start in range(0, len(codes), PIECE):
        part = codes[start : start + PIECE]
        behind = room[:, : len(part)]
        np.less(part, below, out=behind[: len(below)])
        np.greater_equal(part.view(np.int16), above, out=behind[len(below) :])
        into = out[start : start + PIECE]
        np.add.reduce(behind.view(np.uint8), 0, dtype=np.uint8, out=into)


def _ranks(tables: Tables) -> NDArray[np.int64]:
    """How many codes, in the order of their numbers, are nearest to an entry or one before it.

    For all entries but the last: [groups, entries - 1].
    """
    wide = tables.astype(np.float64)
    middle = (wide[:, 1:] + wide[:, :-1]) / 2.0
    below = middle.astype(np.float16)
    below = np.where(below > middle, np.nextafter(below, np.float16(-np.inf)), below)
    below += np.float16(0.0)  # of the two zeros the positive one is the last
    codes = below.view(np.uint16).astype(np.int64)
    ranks: NDArray[np.int64] = np.where(codes < HALF, codes + HALF, CODES - 1 - codes)
    return ranks + 1
