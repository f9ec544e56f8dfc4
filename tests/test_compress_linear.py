"""Whole steps of a scale, sparsity, and the packing of both."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from topoc.dsl.model import Scheme
from topoc.lowering.compress import source
from topoc.lowering.compress.compress import compress
from topoc.lowering.compress.dequantise import dense
from topoc.lowering.compress.measure import damage
from topoc.lowering.compress.packing import Packer, pack, packed_bytes, unpack
from topoc.lowering.compress.recipe import Linear, Palettize, Prune, recipe
from topoc.lowering.compress.source import Held
from topoc.lowering.interpret import dtypes

LINEAR = (Linear(8, "channel"), Linear(8, "tensor"), Linear(4, "block", 16))


def held(values):
    return Held("w", torch.from_numpy(np.asarray(values, np.float32)))


def student(seed, *shape):
    return np.random.default_rng(seed).standard_t(3, shape) * 0.02


@given(bits=st.sampled_from((1, 2, 3, 4, 6, 8)), data=st.data())
def test_packed_values_come_back_and_are_what_packages_hold(bits, data):
    size = data.draw(st.integers(0, 50))
    values = np.random.default_rng(size).integers(0, 1 << bits, size).astype(np.uint8)
    stream = pack(values, bits)
    assert len(stream) == packed_bytes(bits, size)
    assert (unpack(stream, bits, size) == values).all()
    assert (dtypes.unpack(stream, dtypes.BY_NAME[f"uint{bits}"], size) == values).all()
    cuts = sorted(data.draw(st.lists(st.integers(0, size), max_size=4)))
    packer = Packer(np.empty(len(stream), np.uint8), bits)
    for piece in np.split(values, cuts):
        packer.append(piece)
    packer.finish()
    assert (packer.out == stream).all()


def test_a_stream_that_is_not_filled_is_an_error():
    packer = Packer(np.empty(4, np.uint8), 4)
    packer.append(np.ones(6, np.uint8))
    with pytest.raises(ValueError, match="3 bytes were packed, and 4 are needed"):
        packer.finish()


@pytest.mark.parametrize("how", LINEAR)
def test_no_value_is_farther_off_than_half_a_step(how):
    values = student(0, 48, 64)
    made = compress(held(values), how)
    true = values.astype(np.float32).astype(np.float16).astype(np.float64)
    scale = made.parts["scale"].array().astype(np.float64)
    blocks = np.abs(true - dense(made)).reshape(48, scale.shape[1], -1)
    rounding = np.abs(true).max() * 2.0**-11 * 2  # of the scale, and of the product
    assert (blocks <= scale[..., None] / 2 + rounding).all()
    steps = made.parts["data"].array()
    assert np.abs(steps).max() == (1 << how.bits - 1) - 1  # the range is used, and is symmetric


EXACT = {
    "all zero": np.zeros((32, 32)),
    "a zero row": np.concatenate([np.zeros((1, 32)), np.full((31, 32), -0.0371)]),
    "a zero block": np.concatenate([np.zeros((32, 16)), np.full((32, 16), 3e-5)], axis=1),
    "constant": np.full((32, 32), 0.0371),
    "ternary": np.random.default_rng(1).integers(-1, 2, (32, 32)) * 0.0371,
    "the least subnormal": np.random.default_rng(2).integers(-1, 2, (32, 32)) * 2.0**-24,
    "the greatest": np.full((32, 32), 65504.0),
}


@pytest.mark.parametrize("how", LINEAR)
@pytest.mark.parametrize("name", EXACT)
def test_one_size_of_numbers_loses_nothing(name, how):
    values = EXACT[name].astype(np.float32)
    assert (dense(compress(held(values), how)) == values.astype(np.float16)).all()


@pytest.mark.parametrize("how", LINEAR)
@pytest.mark.parametrize("scale", [3e-7, 1e-6, 1.0, 6e4])
def test_no_scale_of_numbers_breaks_it(how, scale):
    values = np.random.default_rng(3).uniform(-1, 1, (32, 32)) * scale
    values[0, 0] = min(scale, 65504.0)
    found = dense(compress(held(values), how))
    assert np.isfinite(found).all()
    assert np.abs(found - values).max() <= max(scale / (7 if how.bits == 4 else 127), 2.0**-24)


@pytest.mark.parametrize("how", LINEAR)
def test_the_greatest_number_beside_others_stays_finite(how):
    values = student(10, 16, 32)
    values[3, 3] = 65504.0
    found = dense(compress(held(values), how))
    assert np.isfinite(found).all()
    assert abs(found[3, 3] - 65504.0) <= 64.0


def test_a_table_of_bytes_is_a_little_worse_than_one_of_fp16():
    values = student(4, 64, 256)
    plain, bytes_ = (
        damage(held(values), compress(held(values), Palettize(4, 32, lut)))
        for lut in ("fp16", "int8")
    )
    assert plain.sqnr - 1.0 < bytes_.sqnr < plain.sqnr


def test_the_least_of_each_m_are_pruned():
    values = student(5, 8, 24)
    values[0, :4] = 0.5  # of four alike the first two go
    found = dense(compress(held(values), Prune(2, 4)))
    for row, kept in zip(values.reshape(-1, 4), found.reshape(-1, 4), strict=True):
        order = np.argsort(np.abs(row.astype(np.float16)), kind="stable")
        assert (kept[order[:2]] == 0).all()
        assert (kept[order[2:]] == row.astype(np.float16)[order[2:]]).all()


def test_a_table_over_pruned_weights_is_fitted_to_the_kept_ones():
    values = student(6, 32, 64)
    pruned = dense(compress(held(values), Prune(2, 4)))
    found = dense(compress(held(values), Prune(2, 4, Palettize(4, 16))))
    assert (found[pruned == 0] == 0).all()
    kept = pruned[pruned != 0].reshape(32, 32)
    assert (found[pruned != 0] == dense(compress(held(kept), Palettize(4, 16))).reshape(-1)).all()


@pytest.mark.parametrize("how", [*LINEAR, Prune(1, 4), Prune(2, 4, Palettize(3, 7))])
def test_blocks_of_rows_make_no_difference(how, monkeypatch):
    values = student(7, 35, 48)
    whole = compress(held(values), how)
    monkeypatch.setattr(source, "BLOCK", 5 * 48)
    again = compress(held(values), how)
    for name, one in whole.parts.items():
        assert again.parts[name].data.tobytes() == one.data.tobytes()


def test_damage_is_what_it_is_called():
    values, columns = student(8, 24, 32), np.exp(student(9, 32) * 50)
    made = compress(held(values), Palettize(2, 8))
    true = values.astype(np.float32).astype(np.float16).astype(np.float64)
    lost, found = true - dense(made), damage(held(values), made, columns)
    assert found.sqnr == pytest.approx(10 * np.log10((true**2).sum() / (lost**2).sum()))
    assert found.output_error == pytest.approx(
        (lost**2 @ columns).sum() / (true**2 @ columns).sum()
    )
    assert damage(held(values * 0), compress(held(values * 0), Palettize(2))).sqnr == np.inf


def test_schemes_of_a_topology_become_recipes():
    def scheme(name, **given):
        return Scheme(name=name, arguments=tuple(given.items()))

    assert recipe((scheme("none"),)) is None
    grouped = scheme("palettize", bits=4, group=32, lut="fp16")
    assert recipe((grouped,)) == Palettize(4, 32)
    assert recipe((scheme("palettize", bits=6, group="per_tensor"),)) == Palettize(6)
    assert recipe((scheme("int8", per="row"),)) == Linear(8, "channel")
    assert recipe((scheme("int8", per="tensor"),)) == Linear(8, "tensor")
    assert recipe((scheme("int4", block=32),)) == Linear(4, "block", 32)
    assert recipe((scheme("prune", n=2, m=4), grouped)) == Prune(2, 4, Palettize(4, 32))
