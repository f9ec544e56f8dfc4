"""Which position a cache slot holds, what a query sees, and where rows are stored.

`EMPTY` is the position of a key that is not filled.
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


def slot_of(rule: SlotRule, slots: int, position: int) -> int:
    """The slot that a call of one token at `position` takes."""
    return slots - 1 if rule == "shift" else position % slots


def store(cache: Array, rows: Array, rule: SlotRule, *, position: int, real: int) -> Array:
    """The cache (…, slots, width) after the first `real` of `rows` (…, T, width) are stored.

    `modulo` writes in place; of more rows than slots the last `slots` are kept.
    """
    slots = cache.shape[-2]
    first = max(0, real - slots)
    kept = rows[..., first:real, :].astype(cache.dtype)
    if rule == "shift":
        return np.concatenate([cache[..., real - first :, :], kept], axis=-2)
    taken = (position + np.arange(first, real, dtype=np.int64)) % slots
    target = cache if cache.flags.writeable else cache.copy()
    target[..., taken, :] = kept
    return target
