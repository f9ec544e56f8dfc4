"""Which position a cache slot holds, what a query sees, and where rows are stored.

`EMPTY` is the position of a key that is not filled, and the slot of a row that is not stored.
"""

from typing import Any

import numpy as np
import numpy.typing as npt

from topoc.lowering.manifest import Keys, SlotRule

EMPTY = -1

Positions = npt.NDArray[np.int64]
Array = npt.NDArray[Any]  # fp16, fp32 or int32, as the manifest declares


def held(rule: SlotRule, slots: int, committed: int) -> Positions:
    """The position in each slot once `committed` tokens stand in the cache."""
    slot = np.arange(slots, dtype=np.int64)
    if rule == "shift":
        position = committed - slots + slot
    else:
        position = slot + (committed - 1 - slot) // slots * slots
    return np.where(position < 0, EMPTY, position)


def key_positions(
    keys: Keys, rule: SlotRule, slots: int, *, position: int, real: int, tokens: int
) -> Positions:
    """The position that each key of a call holds: `real` tokens of `tokens` from `position` on."""
    if keys == "cache":
        return held(rule, slots, position + real)
    row = np.arange(tokens, dtype=np.int64)
    own = np.where(row < real, position + row, EMPTY)
    return np.concatenate([held(rule, slots, position), own])


def query_positions(*, position: int, real: int, tokens: int) -> Positions:
    """The position of each row of a call; padding rows repeat the last real one."""
    return position + np.minimum(np.arange(tokens, dtype=np.int64), real - 1)


def visible(keys: Positions, queries: Positions, window: int | None) -> npt.NDArray[np.bool_]:
    """The mask rule, (queries, keys): filled, not after the query, and inside its window."""
    key, query = keys[None, :], queries[:, None]
    seen: npt.NDArray[np.bool_] = (key != EMPTY) & (key <= query)
    if window is not None:
        seen &= key > query - window
    return seen


def slots_of(rule: SlotRule, slots: int, *, position: int, real: int) -> Positions:
    """The slot that each of `real` rows takes; EMPTY for one that a later one pushes out."""
    row = np.arange(real, dtype=np.int64)
    slot = slots - real + row if rule == "shift" else (position + row) % slots
    return np.where(row < real - slots, EMPTY, slot)


def store(cache: Array, rows: Array, rule: SlotRule, *, position: int, real: int) -> None:
    """Put the first `real` of `rows` (…, T, width) into the cache (…, slots, width), in place.

    Of more rows than slots the last `slots` are kept.
    """
    taken = slots_of(rule, cache.shape[-2], position=position, real=real)
    kept = taken != EMPTY
    if rule == "shift" and kept.any():
        count = int(kept.sum())
        cache[..., :-count, :] = cache[..., count:, :].copy()
    cache[..., taken[kept], :] = rows[..., :real, :][..., kept, :]
