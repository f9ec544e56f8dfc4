"""Measured differences between a bundle and its reference, and the limits that they must keep.

(i)   an fp32 build: greatest |Δ| at most 1e-4 of the reference's standard deviation, and every
      greedy token equal;
(ii)  a shipped fp16 package, interpreted in fp32: at most 5e-3 from a reference that is rounded
      alike, and 2e-2 from one that is not;
(iii) the same, rounded to fp16 after each op: cosine at least 0.9999, and the greatest logit
      equal wherever the reference's margin exceeds twice the error measured there;
(iv)  a package with compressed weights against the checkpoint as it was: reported, and limited
      by what the topology expects, on a text.

Where weights are compressed, the reference of (ii) and (iii) holds what the package makes of them.
"""

from collections.abc import Sequence
from math import isfinite
from typing import Any, Literal

import numpy as np
from attrs import frozen

from topoc.dsl.diagnostic import Place, TopocError, error
from topoc.lowering.bundle.reader import Bundle
from topoc.lowering.engine.driver import Engine, Predictor

Logits = np.ndarray[Any, np.dtype[np.float32]]
Gate = Literal["i", "ii", "ii-unrounded", "iii", "iv"]
LIMITS: dict[str, float] = {"i": 1e-4, "ii": 5e-3, "ii-unrounded": 2e-2}
COSINE = 0.9999


@frozen(kw_only=True)
class Difference:
    """How far logits are from the reference's, over some positions."""

    positions: tuple[int, ...]
    error: float  # greatest |Δlogit|, in standard deviations of the reference's logits
    cosine: float  # the least over positions
    flips: tuple[int, ...]  # positions where another token is greatest
    clear_flips: tuple[int, ...]  # those where the reference's margin exceeds twice the error

    def keeps(self, gate: Gate) -> bool:
        """Whether the difference is within the gate's limits; NaN is within none."""
        if gate == "iii":
            return self.cosine >= COSINE and not self.clear_flips
        if gate == "iv":
            return isfinite(self.error)
        if gate == "i" and self.flips:
            return False
        return self.error <= LIMITS[gate]


def difference(found: Logits, reference: Logits, positions: Sequence[int]) -> Difference:
    """Compare logits, (positions, V) each."""
    distance = np.abs(found - reference).max(1)
    best = np.sort(reference, 1)[:, -2:]
    flips = found.argmax(1) != reference.argmax(1)
    clear = flips & ~(best[:, 1] - best[:, 0] <= 2 * distance)
    lengths = np.linalg.norm(found, axis=1) * np.linalg.norm(reference, axis=1)
    cosines = (found * reference).sum(1) / lengths
    places = np.asarray(positions)
    return Difference(
        positions=tuple(positions),
        error=float(distance.max() / reference.std()),
        cosine=float(cosines.min()),
        flips=tuple(places[flips].tolist()),
        clear_flips=tuple(places[clear | ~np.isfinite(distance)].tolist()),
    )


def teacher_forced(
    bundle: Bundle,
    predictor: Predictor,
    tokens: Sequence[int],
    positions: Sequence[int],
    *,
    only: str | None = None,
) -> Logits:
    """A bundle's logits after the tokens at these positions, (positions, V).

    Between two positions the engine chooses its calls, or uses the function `only`.
    """
    engine = Engine(bundle, predictor, want_logits=True)
    rows, fed = [], 0
    for position in sorted(positions):
        logits = engine.feed(tokens[fed : position + 1], only=only).logits
        if logits is None:
            words = f"`{bundle.manifest.name}` ends in no logits, and nothing else is compared"
            way = "verify a twin with `head(argmax)` or `head(logits)`"
            raise TopocError(error("verify.no-logits", words, Place(str(bundle.path)), help=way))
        rows.append(logits)
        fed = position + 1
    return np.stack([np.asarray(row, np.float32) for row in rows])


def telling_positions(windows: Sequence[int], last: int) -> tuple[int, ...]:
    """The positions where mistakes show: 0, 1, around each window and its double, and the last."""
    told = {0, 1, last}
    for window in windows:
        told |= {window - 1, window, window + 1, 2 * window, 2 * window + 1}
    return tuple(sorted(one for one in told if one <= last))
