"""Error feedback: later columns make up for what earlier ones lost."""

import numpy as np
import pytest
import torch

from topoc.lowering.compress.compress import compress
from topoc.lowering.compress.dequantise import dense, tables
from topoc.lowering.compress.feedback import fed_back
from topoc.lowering.compress.recipe import Linear, Palettize
from topoc.lowering.compress.source import Held


def setting(rows=48, columns=96, rank=24, tokens=600):
    """A weight and inputs that go together, as those of a model do; half of them held out."""
    rng = np.random.default_rng(0)
    mixing = rng.standard_normal((rank, columns)) * np.exp(rng.standard_normal(columns))
    inputs = rng.standard_normal((2 * tokens, rank)) @ mixing
    inputs += 0.1 * rng.standard_normal(inputs.shape)
    weight = Held("w", torch.from_numpy(rng.standard_t(3, (rows, columns)).astype(np.float32)))
    return weight, inputs[:tokens], inputs[tokens:]


def product(inputs):
    return (inputs.T @ inputs / len(inputs)).astype(np.float32)


def output_error(weight, made, inputs):
    lost = weight.values.half().double().numpy() - dense(made).astype(np.float64)
    return ((inputs @ lost.T) ** 2).sum()


def test_it_lowers_the_error_of_outputs_it_was_not_shown():
    weight, seen, held_out = setting()
    plain = compress(weight, Palettize(4, 16))
    whole = fed_back(weight, plain, [product(seen)])
    halves = fed_back(weight, plain, [product(seen[:, :40]), product(seen[:, 40:])])
    errors = [output_error(weight, one, held_out) for one in (plain, halves, whole)]
    assert errors[2] < 0.5 * errors[0]
    assert errors[2] < errors[1] < 0.9 * errors[0]
    assert tables(whole).tobytes() == tables(plain).tobytes()
    assert whole.bytes == plain.bytes


def test_inputs_that_have_nothing_in_common_leave_it_as_it_is():
    weight, _, _ = setting()
    plain = compress(weight, Palettize(3, 16))
    same = fed_back(weight, plain, [np.diag(np.arange(1.0, 97.0)).astype(np.float32)])
    assert (dense(same) == dense(plain)).all()
    nothing = fed_back(weight, plain, [np.zeros((96, 96), np.float32)])
    assert (dense(nothing) == dense(plain)).all()


def test_padded_rows_keep_their_entries():
    weight, seen, _ = setting(rows=41)
    plain = compress(weight, Palettize(4, 16), pad_groups=True)
    made = fed_back(weight, plain, [product(seen)])
    assert (made.parts["indices"].rows(41, 48) == plain.parts["indices"].rows(41, 48)).all()


def test_it_equals_the_columns_taken_one_by_one():
    """The plain recursion: each column's error moves all columns that are still to come."""
    weight, seen, _ = setting(rows=4, columns=80)
    plain = compress(weight, Palettize(2, 4))
    products = product(seen).astype(np.float64)
    power = np.diag(products)
    rest = weight.values.half().double().numpy().copy()
    entries, left = tables(plain)[0].astype(np.float64), list(np.argsort(-power, kind="stable"))
    damped = products + 0.01 * power.mean() * np.eye(80)
    found = np.empty((4, 80))
    while left:
        at = left[0]
        found[:, at] = entries[np.abs(rest[:, at, None] - entries).argmin(1)]
        inverse = np.linalg.inv(damped[np.ix_(left, left)])
        error = (rest[:, at] - found[:, at]) / inverse[0, 0]
        rest[:, left] -= error[:, None] * inverse[0]
        left = left[1:]
    agreeing = (found == dense(fed_back(weight, plain, [product(seen)]))).mean()
    assert agreeing > 0.95  # one float32 tie that falls the other way moves what follows


def test_what_it_does_not_go_with_is_refused():
    weight, seen, _ = setting()
    with pytest.raises(ValueError, match="at most 4 bits"):
        fed_back(weight, compress(weight, Palettize(6, 16)), [product(seen)])
    with pytest.raises(ValueError, match="at most 4 bits"):
        fed_back(weight, compress(weight, Linear(8, "channel")), [product(seen)])
    with pytest.raises(ValueError, match="of 90 inputs, and the weight has 96"):
        fed_back(weight, compress(weight, Palettize(4, 16)), [product(seen[:, :90])])
