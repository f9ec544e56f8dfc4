"""Histograms of fp16 codes: exact, whatever the weights, and of all numbers there are."""

import numpy as np
import pytest

from topoc.lowering.compress import histogram
from topoc.lowering.compress.histogram import CODES, INFINITE
from topoc.lowering.compress.importance import Importance


def counted(codes, weights=None, *, shift=2, peak=INFINITE - 1, mass=1 << 62):
    """The histogram of codes [groups, codes], with weights likewise."""
    made = histogram.empty(len(codes), shift, peak=peak, mass=mass)
    for at, some in enumerate(codes):
        histogram.fill(made, at, [(some, None if weights is None else weights[at])])
    return made


def expected(codes, weights, shift):
    """The same by NumPy, in int64: [groups, cells]."""
    found = np.zeros((len(codes), CODES >> shift), np.int64)
    for into, some, by in zip(found, codes, weights, strict=True):
        np.add.at(into, some >> shift, by.astype(np.int64))
    return found


def some_codes(peak, *shape):
    """Codes up to a peak, of both signs, the peak among them."""
    rng = np.random.default_rng(peak)
    codes = rng.integers(0, peak + 1, shape) + rng.integers(0, 2, shape) * (CODES // 2)
    codes[..., :2] = peak, peak + CODES // 2
    return codes.astype(np.uint16)


@pytest.mark.parametrize("shift", [0, 1, 2])
@pytest.mark.parametrize("peak", [0, 255, 256, 0x39D0, INFINITE - 1])
def test_no_number_up_to_the_greatest_is_left_out(peak, shift):
    codes = some_codes(peak, 3, 70_000)
    made = counted(codes, shift=shift, peak=peak)
    true = expected(codes, np.ones(codes.shape), shift)
    np.testing.assert_array_equal(made.masses(), true)
    np.testing.assert_array_equal(made.masses(8), true.reshape(3, -1, 8).sum(2))
    np.testing.assert_array_equal(made.total(), true.sum(0))


@pytest.mark.parametrize("most", [1 << 12, 1 << 23, (1 << 24) - 1])
def test_sums_of_weights_in_float32_are_exact(most):
    codes = some_codes(300, 2, 5000)
    weights = np.random.default_rng(most).integers(1, most, codes.shape).astype(np.float32)
    made = counted(codes, weights, peak=300)
    np.testing.assert_array_equal(made.masses(), expected(codes, weights, 2))


def test_the_sum_of_all_groups_is_exact_where_that_of_each_fits_32_bits():
    codes = np.zeros((4, 300), np.uint16)
    weights = np.full(codes.shape, 1 << 22, np.float32)
    made = counted(codes, weights, peak=0, mass=300 << 22)
    assert made.upto.dtype == np.int32
    assert made.total()[0] == 4 * 300 << 22


def test_no_row_weighs_more_than_the_heaviest():
    rng = np.random.default_rng(0)
    importance = Importance(np.exp(4 * rng.standard_normal(50)), np.exp(rng.standard_normal(40)))
    for start, stop in ((0, 40), (7, 8), (20, 33)):
        rows = importance.weights(start, stop, 50).sum(1, dtype=np.float64)
        heaviest = importance.heaviest(start, stop, 50)
        assert 0.9 * heaviest - 100 <= rows.max() <= heaviest
