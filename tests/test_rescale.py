"""Which powers of two hold a checkpoint's stream: in the range of each layer, with few switches."""

from itertools import pairwise
from math import log2

import pytest
from hypothesis import given
from hypothesis import strategies as st

from topoc.lowering.rescale import (
    FP16_MAX,
    HEADROOM,
    SQUARE_MAX,
    Range,
    Scales,
    Swing,
    residual_scales,
    scales_for,
)

# Gemma 3 270M over a sentence: greatest |x| and least mean square of each layer's input and of
# the final norm's.
PEAKS = (
    *(146, 3747, 5359, 6725, 10970, 27422, 41944, 55020, 68398, 83154, 89377, 91407),
    *(100191, 102528, 104061, 103795, 102591, 82959, 66095),
)
LEAST = (
    *(1.06, 9.0, 1065, 1157, 4451, 6044, 11835, 12087, 22680, 29250, 37514, 45238),
    *(88875, 123754, 254194, 275663, 289396, 620067, 437660),
)
EPS = 1e-6


def layer(peak, least=1e3, left=None, branches=()):
    stream = Swing(peak=peak, least=least)
    return Range(stream=stream, left=peak if left is None else left, branches=branches)


def gemma():
    after = (*PEAKS[1:], PEAKS[-1])
    return tuple(layer(*one) for one in zip(PEAKS, LEAST, after, strict=True))


def test_gemma_3_270m_gets_two_scales_and_one_switch():
    assert residual_scales(gemma()) == (2**-7,) * 6 + (2**-9,) * 13


def test_gemma_3_270m_fits_fp16_at_its_scales():
    for one, scale in zip(gemma(), residual_scales(gemma()), strict=True):
        assert one.stream.peak * scale <= SQUARE_MAX
        assert one.stream.least * scale**2 >= 2.0**-14
        assert one.left * scale * HEADROOM <= FP16_MAX


def test_a_stream_that_fits_is_left_as_it_is():
    assert residual_scales((layer(16376.0), layer(3.0, 1e-9))) == (1.0, 1.0)
    assert residual_scales((layer(3.0), layer(3.0))) == (1.0, 1.0)


def test_what_a_layer_leaves_counts_as_much_as_what_it_reads():
    assert residual_scales((layer(3.0, left=16377.0), layer(3.0))) != (1.0, 1.0)
    reads_little = layer(1.0, 1.0, left=2.0**20)
    (scale, _) = residual_scales((reads_little, layer(2.0**20, 2.0**20)))
    assert scale == 2.0**-7  # 65504 / 4 would want 2^-7, the square of what is read nothing


def test_a_peak_on_the_edge_of_a_power_of_two_takes_that_power():
    assert residual_scales((layer(255.0 * 2**10, 1.0),)) == (2.0**-10,)
    assert residual_scales((layer(255.1 * 2**10, 1.0),)) == (2.0**-11,)


def test_what_would_overflow_outranks_what_would_underflow():
    both = layer(255.0 * 2**10, least=2.0**-30)
    assert both.exponents() == (-10, -10)


def test_a_row_of_zeros_asks_for_nothing():
    assert layer(255.0 * 2**10, least=0.0).exponents() == (-10, -10)


def test_the_greatest_scale_that_suits_all_is_taken():
    one, other = layer(255.0 * 2**8, 2.0**26), layer(255.0 * 2**6, 2.0**10)
    assert (one.exponents(), other.exponents()) == ((-20, -8), (-12, -6))
    assert residual_scales((one, other)) == residual_scales((other, one)) == (2.0**-8, 2.0**-8)


def test_a_switch_comes_as_late_as_it_can():
    low, mid = layer(255.0 * 2**12, 2.0**8), layer(255.0 * 2**8, 2.0**8)
    high = layer(255.0 * 2**4, 1.0)
    assert (low.exponents(), mid.exponents(), high.exponents()) == ((-12, -12), (-11, -8), (-7, -4))
    assert residual_scales((high, high, mid, low)) == (2.0**-4, 2.0**-4, 2.0**-8, 2.0**-12)


def brute(intervals):
    """The least number of switches over all choices of exponents."""
    best = None
    for low, high in intervals:
        new = {}
        for exponent in range(low, high + 1):
            if best is None:
                new[exponent] = 0
            else:
                new[exponent] = min(n + (other != exponent) for other, n in best.items())
        best = new
    return min(best.values())


swings = st.builds(
    lambda peak, share: (2.0**peak, 2.0 ** (2 * peak - share)),
    st.floats(-4, 30),
    st.floats(0, 60),
)
tables = st.lists(st.tuples(swings, st.floats(-4, 30)), min_size=1, max_size=7).map(
    lambda rows: tuple(layer(peak, least, 2.0**left) for (peak, least), left in rows)
)


@given(tables)
def test_every_scale_is_a_power_of_two_that_suits_its_layer_with_the_fewest_switches(ranges):
    found = residual_scales(ranges)
    assert len(found) == len(ranges)
    exponents = [log2(one) for one in found]
    assert all(one == int(one) for one in exponents)
    if all(max(one.stream.peak, one.left) * HEADROOM <= FP16_MAX for one in ranges):
        assert set(found) == {1.0}
        return
    intervals = [one.exponents() for one in ranges]
    for exponent, (low, high) in zip(exponents, intervals, strict=True):
        assert low <= exponent <= high
    switches = sum(a != b for a, b in pairwise(found))
    assert switches == brute(intervals)


@given(tables)
def test_nothing_overflows_at_the_scale_of_its_layer(ranges):
    found = residual_scales(ranges)
    for one, scale in zip(ranges, found, strict=True):
        assert one.left * scale * HEADROOM <= FP16_MAX
        if set(found) != {1.0}:
            assert one.stream.peak * scale <= SQUARE_MAX


def lifted(peak, least, eps=EPS):
    branches = (Swing(peak=peak, least=least), Swing(peak=1.0, least=1.0))
    (pair,) = scales_for((layer(1.0, branches=branches), layer(1.0)), eps).branches
    assert pair[1] == 1.0
    return pair[0]


@pytest.mark.parametrize(
    ("peak", "least", "eps", "factor"),
    [
        (0.01, 1e-8, EPS, 8.0),  # 2^-14 / 1e-6 is 61, its root 7.8
        (0.0, 0.0, EPS, 8.0),
        (50.0, 1e-8, EPS, 4.0),  # 255 / 50 leaves room for 4
        (200.0, 1e-8, EPS, 1.0),
        (300.0, 1e-8, EPS, 1.0),  # never down
        (0.01, 0.9e-3, EPS, 8.0),  # within a thousand times epsilon
        (0.01, 1.1e-3, EPS, 1.0),  # beyond it
        (0.01, 1e-8, 1e-4, 1.0),  # normal as it is
        (0.01, 1e-8, 0.0, 1.0),
    ],
)
def test_a_branch_near_zero_is_lifted_as_far_as_there_is_room(peak, least, eps, factor):
    assert lifted(peak, least, eps) == factor


def test_a_layer_without_norms_on_its_branches_lifts_nothing():
    found = scales_for((layer(1.0), layer(1.0)), EPS)
    assert found == Scales.none(1)


@given(st.floats(0, 1e5, width=32), st.floats(0, 1e3, width=32))
def test_a_lift_is_a_power_of_two_that_makes_the_epsilon_normal_or_fills_the_room(peak, least):
    factor = lifted(peak, least)
    assert factor in {1.0, 2.0, 4.0, 8.0}
    assert factor == 1.0 or peak * factor <= SQUARE_MAX


def test_every_scale_is_counted_from_the_first_layer_to_the_final_norm():
    found = Scales.none(3)
    assert (len(found.residual), len(found.branches)) == (4, 3)
    assert set(found.residual) | {one for pair in found.branches for one in pair} == {1.0}
