"""How much the error of a weight counts."""

import numpy as np
from attrs import field, frozen

from topoc.lowering.compress.histogram import UNIT, Floats


@frozen
class Importance:
    """Factors of a weight's squared error, by its column and by its row.

    A column's factor is the mean square of the input that it multiplies, so that the weighted
    error is the expected error of the output. A row's factor is the square of the scale that its
    output is multiplied by.
    """

    columns: Floats | None = field(default=None, repr=False)
    rows: Floats | None = field(default=None, repr=False)

    def weights(self, start: int, stop: int, columns: int) -> Floats:
        """Factors of some rows as whole numbers with a mean of about `UNIT`, none below 1.

        Sums of whole numbers are exact, whatever their order: [stop - start, columns].
        """
        wide = np.ones(columns) if self.columns is None else _even(self.columns)
        tall = np.ones(stop - start) if self.rows is None else _even(self.rows)[start:stop]
        return np.maximum(np.rint(UNIT * tall[:, None] * wide), 1.0)


def _even(factors: Floats) -> Floats:
    """Factors with a mean of 1; all alike where nothing is known of them."""
    mean = factors.mean()
    return factors / mean if mean > 0.0 else np.ones_like(factors)
