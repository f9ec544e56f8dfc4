"""Attention in tiles: the same result, in as many products as tiles, whatever a mask hides."""

from math import ceil

import pytest
import torch
import torch.nn.functional as F  # noqa: N812  # torch's own custom
from hypothesis import given, settings
from hypothesis import strategies as st
from test_ops import program_of, tiled, typed
from tiny_topology import Drawn, write_package

from topoc.lowering.interpret.machine import Machine
from topoc.lowering.interpret.package import Package
from topoc.lowering.interpret.reference import evaluate
from topoc.lowering.ir import DType

HEADS, GROUPS, TOKENS, SLOTS, WIDTH = 4, 2, 3, 11, 6
SCALE = 0.25  # fp16 holds it
TILES = (1, 2, 4, 5, 10, 11, 12, 64)
FILLS = (-1e4, -65504.0, float("-inf"))


def written(folder, dtype, ops):
    """The ops as functions of one package."""
    programs = tuple(program_of(typed(op, dtype, 0), name) for name, op in ops.items())
    return Package(write_package(programs, Drawn({}), folder / "p.mlpackage", dtype)), programs


@pytest.fixture(scope="module", params=[DType.FP32, DType.FP16], ids=lambda one: one.value)
def package(request, tmp_path_factory):
    ops = {
        f"tile{tile}_{tokens}": tiled(HEADS, GROUPS, tokens, SLOTS, WIDTH, tile=tile, scale=SCALE)
        for tile in TILES
        for tokens in (1, TOKENS)
    }
    return written(tmp_path_factory.mktemp("tiled"), request.param, ops)[0]


MACHINES: dict[tuple[int, str, bool], Machine] = {}


def machine_of(package, name, *, rounding=False):
    key = id(package), name, rounding
    if key not in MACHINES:
        MACHINES[key] = Machine(package, name, rounding=rounding)
    return MACHINES[key]


def drawn(tokens, seed=0):
    stream = torch.Generator().manual_seed(seed)

    def one(*shape):
        return torch.randn(shape, generator=stream).half().float()

    keys = (1, GROUPS, SLOTS, WIDTH)
    return {"q": one(1, HEADS, tokens, WIDTH), "k": one(*keys), "v": one(*keys)}


def expected(inputs, visible):
    """By torch's own attention over the keys that are visible, each query by itself."""
    repeat = HEADS // GROUPS
    q, k, v = inputs["q"], *(inputs[one].repeat_interleave(repeat, 1) for one in "kv")
    rows = []
    for token, row in enumerate(visible):
        keys = row.nonzero().flatten()
        rows.append(
            F.scaled_dot_product_attention(
                q[:, :, token : token + 1], k[:, :, keys], v[:, :, keys], scale=SCALE
            )
        )
    return torch.cat(rows, 2)


def masked(visible, fill):
    return torch.where(visible, 0.0, fill)[None, None]


def close(found, wanted, tolerance):
    assert torch.isfinite(found).all()
    assert (found - wanted).abs().max() <= tolerance * wanted.abs().max().clamp_min(1.0)


HIDDEN = {
    "the first": range(4),
    "the first two": range(8),
    "the middle": range(4, 8),
    "the last": range(8, 11),
    "all but one": [at for at in range(SLOTS) if at != 5],
    "all but the last key": range(10),
    "none": range(0),
}


@pytest.mark.parametrize("fill", FILLS)
@pytest.mark.parametrize("hidden", HIDDEN)
@pytest.mark.parametrize("tokens", [1, TOKENS])
def test_hidden_tiles_leave_nothing_behind(package, tokens, hidden, fill):
    inputs, visible = drawn(tokens), torch.ones(tokens, SLOTS, dtype=torch.bool)
    visible[-1, list(HIDDEN[hidden])] = False  # the other queries see all of them
    for name in "kv":  # what is hidden would be seen at once
        inputs[name][:, :, list(HIDDEN[hidden])] *= 40.0
    inputs["mask"] = masked(visible, fill)
    wanted = expected(inputs, visible)[:, :, -1:]
    for tile in (1, 4, 5, 64):
        for rounding, tolerance in ((False, 1e-5), (True, 8e-3)):
            machine = machine_of(package, f"tile{tile}_{tokens}", rounding=rounding)
            found = machine.run(inputs)["out0"][:, :, -1:]
            close(found, wanted, tolerance)


@pytest.mark.parametrize("fill", FILLS)
def test_a_hidden_tile_changes_no_bit(package, fill):
    inputs, visible = drawn(1), torch.ones(1, SLOTS, dtype=torch.bool)
    visible[0, 4:8] = False
    inputs["mask"] = masked(visible, fill)
    machine = machine_of(package, "tile4_1", rounding=True)
    before = machine.run(inputs)["out0"]
    for name in "kv":
        inputs[name][:, :, 4:8] *= -30.0
    assert torch.equal(machine.run(inputs)["out0"], before)


@pytest.mark.parametrize("tokens", [1, TOKENS])
@given(data=st.data())
@settings(max_examples=30, deadline=None)
def test_any_mask_at_any_tile_gives_what_attention_gives(package, tokens, data):
    keys = st.sets(st.integers(0, SLOTS - 1), min_size=1)
    visible = torch.zeros(tokens, SLOTS, dtype=torch.bool)
    for row in visible:
        row[list(data.draw(keys))] = True
    inputs = drawn(tokens, seed=data.draw(st.integers(0, 9)))
    inputs["q"] *= data.draw(st.sampled_from([0.1, 1.0, 30.0]))
    inputs["mask"] = masked(visible, data.draw(st.sampled_from(FILLS)))
    name = f"tile{data.draw(st.sampled_from(TILES))}_{tokens}"
    close(machine_of(package, name).run(inputs)["out0"], expected(inputs, visible), 1e-5)


def test_a_query_that_sees_no_key_stays_finite(package):
    inputs = drawn(1)
    for fill in FILLS:
        inputs["mask"] = torch.full((1, 1, 1, SLOTS), fill)
        for tile in (1, 4, 64):
            found = machine_of(package, f"tile{tile}_1", rounding=True).run(inputs)["out0"]
            assert torch.isfinite(found).all()


def test_the_reference_is_attention_by_torch():
    op = tiled(HEADS, GROUPS, TOKENS, SLOTS, WIDTH, tile=4, scale=SCALE)
    program = program_of(op)
    inputs, visible = drawn(TOKENS), torch.rand(TOKENS, SLOTS) > 0.3
    visible[:, 0] = True
    inputs["mask"] = masked(visible, -1e4)
    values = evaluate(program, {one: inputs[one.name] for one in op.operands}, None)
    close(values[program.outputs[0].value], expected(inputs, visible), 1e-6)


def test_there_is_a_pair_of_products_for_each_tile_and_no_softmax(package):
    for tile in TILES:
        for tokens in (1, TOKENS):
            ops = package.function(f"tile{tile}_{tokens}").ops
            kinds = [op.type for op in ops]
            tiles = ceil(SLOTS / tile)
            assert kinds.count("matmul") == 2 * tiles
            assert "softmax" not in kinds
            assert kinds.count("reduce_max") == tiles
            made = [one.shape for op in ops for one in op.outputs if op.type != "const"]
            assert max(map(len, made)) == 4
            widest = max(shape[-1] for shape in made)
            assert widest == max(min(tile, SLOTS), WIDTH)


def test_keys_are_cut_into_tiles_of_which_the_last_is_shorter(package):
    ops = package.function("tile4_1").ops
    found = [op.outputs[0].shape[-1] for op in ops if op.name.endswith("_scores")]
    assert found == [4, 4, 3]


def test_long_uniform_attention_stays_in_fp16(tmp_path):
    """4096 keys of equal score: their exponentials times values of 60 add up to 245 760."""
    op = tiled(2, 1, 1, 4096, 8, tile=2048)
    package, _ = written(tmp_path, DType.FP16, {"main": op})
    inputs = {"q": torch.ones(1, 2, 1, 8), "k": torch.ones(1, 1, 4096, 8)}
    inputs |= {"v": torch.full((1, 1, 4096, 8), 60.0), "mask": torch.zeros(1, 1, 1, 4096)}
    found = Machine(package, rounding=True).run(inputs)["out0"]
    assert torch.equal(found, torch.full((1, 2, 1, 8), 60.0))
