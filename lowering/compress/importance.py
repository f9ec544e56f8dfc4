"""How much the error of a weight counts."""

import numpy as np
from attrs import field, frozen

from topoc.lowering.compress.histogram import UNIT, WHOLE, Floats, Weights


@frozen
class Importance:
    """Factors of a weight's squared error, by its column and by its row.

    A column's factor is the mean square of the input that it multiplies, so that the weighted
    error is the expected error of the output. A row's factor is the square of the scale that its
    output is multiplied by.
    """

    columns: Floats | None = field(default=None, repr=False)
    rows: Floats | None = field(default=None, repr=False)

    def weights(self, start: int, stop: int, columns: int) -> Weights:
        """Factors of some rows as whole numbers with a mean of about `UNIT`, none below 1.

        Sums of whole numbers are exact, whatever their order: [stop - start, columns]. They are
        in float32 if that holds them, which is counted faster.
        """
        tall, wide = self._factors(start, stop, columns)
        found: Weights = np.maximum(np.rint(UNIT * tall[:, None] * wide), 1.0)
        return found.astype(np.float32) if found.max() < WHOLE else found

    def heaviest(self, start: int, stop: int, columns: int) -> float:
        """What none of these rows weighs more than."""
        tall, wide = self._factors(start, stop, columns)
        return float(UNIT * tall.max() * wide.sum() + 2 * columns)  # rounding adds less than 2

    def _factors(self, start: int, stop: int, columns: int) -> tuple[Floats, Floats]:
        """Those of the rows and of the columns."""
        wide = np.ones(columns) if self.columns is None else _even(self.columns)
        tall = np.ones(stop - start) if self.rows is None else _even(self.rows)[start:stop]
        return tall, wide


def _even(factors: Floats) -> Floats:
    """Factors with a mean of 1; all alike where nothing is known of them."""
    mean = factors.mean()
    return factors / mean if mean > 0.0 else np.ones_like(factors)
