"""The interpreter against torch and numpy, on packages that coremltools wrote."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F  # noqa: N812 - torch's own name for it
from hypothesis import given, settings
from hypothesis import strategies as st
from mil_packages import OPS

from topoc.dsl.diagnostic import Place, TopocError
from topoc.lowering.coreml_proto import messages
from topoc.lowering.interpret.dequantize import DECODERS, lut_to_dense
from topoc.lowering.interpret.dtypes import DTYPES, packed_bytes, unpack
from topoc.lowering.interpret.kernels import KERNELS
from topoc.lowering.interpret.machine import Machine
from topoc.lowering.interpret.package import Package

HALF = torch.float16


@pytest.fixture(scope="session")
def packages(tmp_path_factory):
    folder = tmp_path_factory.mktemp("packages")
    script = Path(__file__).with_name("mil_packages.py")
    scratch = tmp_path_factory.mktemp("scratch")  # coremltools leaves packages in it
    subprocess.run(
        [sys.executable, script, folder], check=True, env={**os.environ, "TMPDIR": str(scratch)}
    )
    return folder


def arrays(path):
    saved = path.with_suffix(".npz")
    if not saved.exists():
        return {}
    with np.load(saved) as read:
        return {name: torch.from_numpy(read[name]) for name in read.files}


def drawn(machine, seed=0):
    """Random inputs of the declared shapes; integers small enough to be indices."""
    rng = torch.Generator().manual_seed(seed)
    return {
        one.name: torch.randint(0, 2, one.shape, generator=rng, dtype=torch.int32)
        if one.dtype == "int32"
        else torch.randn(one.shape, generator=rng)
        for one in machine.function.inputs
    }


def layer_norm(axes):
    def reference(i, a):
        x = i["x"]
        mean = x.mean(axes, keepdim=True)
        var = ((x - mean) ** 2).mean(axes, keepdim=True)
        out = (x - mean) / torch.sqrt(var + 1e-3)
        if not a:
            return out
        shape = [
            size if at in [axis % x.ndim for axis in axes] else 1 for at, size in enumerate(x.shape)
        ]
        return out * a["p0"].view(shape) + a["p1"].view(shape)

    return reference


def conv(function=F.conv2d, before=(), **more):
    return lambda i, a: function(F.pad(i["x"], before), a["weight"], a.get("bias"), **more)


def replaced(x, index, update):
    fresh = x.clone()
    fresh[index] = update
    return fresh


def rsqrt_mean_square(i, a):
    return i["x"] / torch.sqrt((i["x"] ** 2).mean(1, keepdim=True) + 1e-6)


def logical(function):
    return lambda i, _: function(i["x"] > 0, i["y"] > 0).float()


def compared(function):
    return lambda i, _: torch.from_numpy(function(i["x"].numpy(), i["y"].numpy())).float()


def numpied(function):
    return lambda i, _: torch.from_numpy(np.asarray(function(*(one.numpy() for one in i.values()))))


def codes(scale, zero, low, high):
    scale, zero = (np.float32(one).reshape(-1, 1) for one in (scale, zero))
    return lambda i, _: torch.from_numpy(
        np.clip(np.rint(i["x"].numpy() / scale) + zero, low, high).astype(np.float32)
    )


def back(scale, zero):
    made = codes(scale, zero, -128, 127)
    scale, zero = (torch.tensor(one).reshape(-1, 1) for one in (scale, zero))
    return lambda i, a: (made(i, a) - zero) * scale


STEPS = [0.01, 0.5, 0.007]
REFERENCES = {
    "quantize": codes(0.01, 0, -128, 127),
    "quantize_axis": codes(STEPS, [100, 3, 0], 0, 255),
    "dequantize": back(0.01, -5),
    "dequantize_axis": back(STEPS, [9, -3, 0]),
    "add": numpied(np.add),
    "sub": numpied(np.subtract),
    "mul": numpied(np.multiply),
    "real_div": numpied(np.divide),
    "floor_div": numpied(np.floor_divide),
    "mod": numpied(np.mod),
    "maximum": numpied(np.maximum),
    "minimum": numpied(np.minimum),
    "pow": numpied(lambda x: np.abs(x) ** 2.5),
    "equal": compared(np.equal),
    "not_equal": compared(np.not_equal),
    "less": compared(np.less),
    "less_equal": compared(np.less_equal),
    "greater": compared(np.greater),
    "greater_equal": compared(np.greater_equal),
    "logical_and": logical(torch.logical_and),
    "logical_or": logical(torch.logical_or),
    "logical_xor": logical(torch.logical_xor),
    "logical_not": lambda i, _: (i["x"] >= 0).float(),
    "exp": numpied(np.exp),
    "exp2": numpied(np.exp2),
    "square": numpied(np.square),
    "sin": numpied(np.sin),
    "cos": numpied(np.cos),
    "erf": lambda i, _: torch.special.erf(i["x"]),
    "tanh": numpied(np.tanh),
    "sigmoid": numpied(lambda x: 1 / (1 + np.exp(-x))),
    "silu": numpied(lambda x: x / (1 + np.exp(-x))),
    "softplus": numpied(lambda x: np.log(1 + np.exp(x))),
    "abs": numpied(np.abs),
    "ceil": numpied(np.ceil),
    "floor": numpied(np.floor),
    "relu": numpied(lambda x: np.maximum(x, 0)),
    "sign": numpied(np.sign),
    "identity": lambda i, _: i["x"],
    "sqrt": numpied(lambda x: np.sqrt(np.abs(x))),
    "rsqrt": numpied(lambda x: 1 / np.sqrt(np.abs(x) + 0.5)),
    "log": numpied(lambda x: np.log(np.abs(x) + 0.5)),
    "inverse": numpied(lambda x: 1 / (x + 0.5)),
    "gelu_tanh": numpied(
        lambda x: x / 2 * (1 + np.tanh((2 / np.pi) ** 0.5 * (x + 0.044715 * x**3)))
    ),
    "gelu_exact": lambda i, _: i["x"] / 2 * (1 + torch.special.erf(i["x"] / 2**0.5)),
    "gelu_sigmoid": numpied(lambda x: x / (1 + np.exp(-1.702 * x))),
    "clip": numpied(lambda x: np.clip(x, -0.5, 0.25)),
    "cast_int32": numpied(lambda x: np.trunc(x * 3).astype(np.int32)),
    "select": numpied(lambda x, y: np.where(x > y, x, x * 10)),
    "reshape": numpied(lambda x: x.reshape(4, 6)),
    "expand_dims": numpied(lambda x: x[None, ..., None]),
    "squeeze": numpied(lambda x: x[0]),
    "transpose": numpied(lambda x: x.transpose(2, 0, 1)),
    "concat_0": numpied(lambda x: np.concatenate([x, x * 2], 0)),
    "concat_2": numpied(lambda x: np.concatenate([x, x * 2], 2)),
    "stack": numpied(lambda x: np.stack([x, x * 2], 1)),
    "split_even": lambda i, _: (i["x"][:, :2], i["x"][:, 2:4], i["x"][:, 4:]),
    "split_sizes": lambda i, _: (i["x"][:, :1], i["x"][:, 1:3], i["x"][:, 3:]),
    "tile": numpied(lambda x: np.tile(x, (2, 1, 3))),
    "pad": numpied(lambda x: np.pad(x, ((0, 0), (1, 0), (2, 3)), constant_values=1.5)),
    "slice_by_size": lambda i, _: i["x"][:, 2:5],
    "slice_by_size_two": lambda i, _: i["x"][:, 3:, 1:3],
    "slice_by_size_begin": lambda i, _: i["x"][0:1, 1:3, 1:4, 2:3],
    "slice_by_index": lambda i, _: i["x"][0:1, 2:5:2, 1],
    "slice_by_index_begin": lambda i, _: i["x"][2],
    "slice_update": lambda i, _: replaced(i["x"], slice(1, 3), i["u"]),
    "slice_update_begin": lambda i, _: replaced(i["x"], slice(2, 3), i["u"]),
    "conv_point": conv(),
    "conv_point_no_bias": conv(),
    "conv_point_batch": conv(),
    "conv_point_strided": conv(stride=2),
    "conv_point_padded": conv(before=(0, 0, 1, 1)),
    "conv_groups": conv(groups=2),
    "conv_custom": conv(before=(0, 1, 1, 2)),
    "conv_same": conv(before=(0, 1, 1, 1), stride=(2, 1)),
    "conv_same_lower": conv(before=(1, 0, 1, 0)),
    "conv_dilated": conv(dilation=(2, 1)),
    "conv_1d": conv(F.conv1d),
    "matmul_gqa": lambda i, _: torch.einsum("bkqd,bksd->bkqs", i["x"], i["y"]),
    "matmul_broadcast": lambda i, _: torch.einsum("nkqd,kds->nkqs", i["x"], i["y"]),
    "matmul_transposed": lambda i, _: torch.einsum("ndq,nsd->nqs", i["x"], i["y"]),
    "matmul_transpose_x": lambda i, _: torch.einsum("ndq,nds->nqs", i["x"], i["y"]),
    "linear": lambda i, a: i["x"] @ a["p0"].T + a["p1"],
    "layer_norm_channels": layer_norm([1]),
    "layer_norm_bare": layer_norm([1]),
    "layer_norm_two": lambda i, a: layer_norm([1, 3])(i, {}) * a["p0"][:, None] + a["p1"][:, None],
    "layer_norm_last": layer_norm([-1]),
    "rms_idiom": rsqrt_mean_square,
    "softmax": lambda i, _: i["x"].exp() / i["x"].exp().sum(1, keepdim=True),
    "reduce_sum": numpied(lambda x: x.sum((1, 2), keepdims=True)),
    "reduce_mean": numpied(lambda x: x.mean((1, 2), keepdims=True)),
    "reduce_max": numpied(lambda x: x.max((1, 2), keepdims=True)),
    "reduce_min": numpied(lambda x: x.min(0)),
    "reduce_sum_all": numpied(np.sum),
    "reduce_sum_int": numpied(lambda x: x.sum(0, dtype=np.int32)),
    "reduce_argmax": numpied(lambda x: x.argmax(1, keepdims=True).astype(np.int32)),
    "reduce_argmin": numpied(lambda x: x.argmin(-1).astype(np.int32)),
    "argmax_tie": lambda _i, _: torch.zeros(2, dtype=torch.int32),
    "argmax_blocks": numpied(lambda x: x.argmax(1, keepdims=True).astype(np.int32)),
    "argmax_blocks_tie": numpied(lambda x: np.sign(x).argmax(2).astype(np.int32)),
    "topk": lambda i, _: (
        i["x"].sort(-1, descending=True)[0][..., :2],
        i["x"].argsort(-1, descending=True)[..., :2].int(),
    ),
    "topk_ascending": lambda i, _: (i["x"].sort(1)[0][:, :2], i["x"].argsort(1)[:, :2].int()),
    "gather": lambda i, _: i["x"][i["at"].long()],
    "gather_1": lambda i, _: i["x"][:, i["at"].long()],
}
GIVEN = {
    "slice_by_size_begin": {"begin": [0, 1, -4, 2]},
    "slice_by_index_begin": {"at": [-2, 1], "to": [0, 1]},
    "slice_update_begin": {"at": [2, 0], "to": [3, 3]},
    "gather": {"at": [[0, -1], [4, 2]]},
    "gather_1": {"at": [-4, 2]},
}


@pytest.mark.parametrize("name", sorted(OPS))
def test_an_op_computes_what_its_reference_does(packages, name):
    path = packages / "op" / f"{name}.mlpackage"
    machine = Machine(path)
    inputs = drawn(machine)
    inputs |= {
        key: torch.tensor(value, dtype=torch.int32) for key, value in GIVEN.get(name, {}).items()
    }
    expected = REFERENCES[name](inputs, arrays(path))
    expected = expected if isinstance(expected, tuple) else (expected,)
    for _ in range(2):  # the second run is the one that does not watch its results
        found = machine.run(inputs)
        assert list(found) == [one.name for one in machine.function.outputs]
        for got, want in zip(found.values(), expected, strict=True):
            assert got.dtype == want.dtype
            torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-5)


def test_every_kernel_runs_in_some_package(packages):
    ran = {
        op.type
        for path in packages.rglob("*.mlpackage")
        for function in Package(path).functions.values()
        for op in function.ops
    }
    assert set(KERNELS) - ran == set()
    sparse = {"constexpr_sparse_to_dense", "constexpr_lut_to_sparse"}
    assert set(DECODERS) - ran == sparse  # tests/test_compressed.py holds them


def test_probes_give_what_lies_inside(packages):
    machine = Machine(packages / "fp16" / "chain.mlpackage")
    inputs = drawn(machine)
    (output,) = [one.name for one in machine.function.outputs]
    plain = machine.run(inputs)
    probed = machine.run(inputs, probes=["first", "x"])
    assert list(plain) == [output]
    assert list(probed) == [output, "first", "x"]
    torch.testing.assert_close(probed["first"], inputs["x"] * float(np.float16(0.1)))
    assert torch.equal(probed["x"], inputs["x"])
    assert torch.equal(plain[output], probed[output])
    with pytest.raises(
        TopocError, match=r"bundle\.feature: the function has no value named `nowhere`"
    ):
        machine.run(inputs, probes=["nowhere"])


def test_an_observer_sees_every_result_in_order(packages):
    machine = Machine(packages / "fp16" / "chain.mlpackage")
    seen = []
    machine.run(drawn(machine), observe=lambda *one: seen.append(one))
    assert [kind for _, kind, _ in seen] == ["mul", "mul", "add"]
    assert seen[0][0] == "first"
    (output,) = machine.run(drawn(machine)).values()
    assert torch.equal(seen[-1][2], output)


def test_liveness_frees_what_no_one_reads_again(packages):
    machine = Machine(packages / "fp16" / "chain.mlpackage")
    plan = machine._plan(frozenset())
    kept = machine._plan(frozenset({"first"}))
    slots = machine._prepared.slots
    assert [slots["first"] in frees for _, frees in plan.steps] == [False, True, False]
    assert not any(slots["first"] in frees for _, frees in kept.steps)
    assert any(slots["x"] in frees for _, frees in plan.steps)


@pytest.mark.parametrize("name", ["identity", "reshape", "slice_by_size"])
def test_outputs_have_memory_of_their_own(packages, name):
    machine = Machine(packages / "op" / f"{name}.mlpackage")
    inputs = {key: value.numpy() for key, value in drawn(machine).items()}
    (output,) = machine.run(inputs).values()
    before = output.clone()
    inputs["x"][:] = 7.0
    assert torch.equal(output, before)


def test_inputs_may_be_read_only_and_are_left_alone(packages):
    machine = Machine(packages / "op" / "slice_update.mlpackage")
    inputs = {key: value.numpy().copy() for key, value in drawn(machine).items()}
    before = {key: value.copy() for key, value in inputs.items()}
    for value in inputs.values():
        value.flags.writeable = False
    machine.run(inputs)
    for key, value in inputs.items():
        np.testing.assert_array_equal(value, before[key])


def test_softmax_gives_no_subnormal_weights(packages):
    machine = Machine(packages / "op" / "softmax.mlpackage")
    x = torch.zeros(2, 3, 4)
    x[:, 1:] = torch.tensor([-95.0, -80.0])[:, None]
    (found,) = machine.run({"x": x}).values()
    assert torch.equal(found[:, 1], torch.zeros(2, 4))
    assert torch.equal(found[:, 2], torch.softmax(x, 1)[:, 2])


# fp16


def rounding(packages, name):
    path = packages / "fp16" / f"{name}.mlpackage"
    return Machine(path, rounding=True), Machine(path), arrays(path)


def test_a_product_beyond_fp16_is_infinite_only_with_rounding(packages):
    rounded, wide, _ = rounding(packages, "square")
    x = torch.tensor([255.0, 256.0, -300.0, 0.0, 1.0, 255.875])
    (found,) = rounded.run({"x": x}).values()
    assert torch.equal(found, (x.half() * x.half()).float())
    assert torch.isinf(found).tolist() == [False, True, True, False, False, False]
    (found,) = wide.run({"x": x}).values()
    assert torch.equal(found, x * x)


@given(st.lists(st.floats(-(2**-10), 2**-10, width=16), min_size=64, max_size=64))
@settings(max_examples=50, deadline=None)
def test_subnormals_round_as_torch_rounds_them(packages, values):
    machine = cached(packages / "fp16" / "tenth.mlpackage")
    x = torch.tensor(values, dtype=HALF)
    (found,) = machine.run({"x": x}).values()
    assert found.dtype == torch.float32
    assert torch.equal(found, (x * torch.tensor(0.1, dtype=HALF)).float())


MACHINES = {}


def cached(path):
    if path not in MACHINES:
        MACHINES[path] = Machine(path, rounding=True)
    return MACHINES[path]


def test_each_step_of_a_chain_rounds(packages):
    rounded, _, _ = rounding(packages, "chain")
    x = drawn(rounded)["x"].half()
    want = x * torch.tensor(0.1, dtype=HALF) * torch.tensor(3.0, dtype=HALF) + torch.tensor(
        1.0, dtype=HALF
    )
    (found,) = rounded.run({"x": x.float()}).values()
    assert torch.equal(found, want.float())
    once = (x.float() * float(np.float16(0.1)) * 3 + 1).half().float()
    assert not torch.equal(found, once)


def test_an_fp32_island_rounds_only_where_it_is_left(packages):
    rounded, _, _ = rounding(packages, "island")
    x = drawn(rounded)["x"].half().float()
    found = rounded.run({"x": x}, probes=["wide"])
    wide = x * float(np.float32(1 / 3))
    assert torch.equal(found.pop("wide"), wide)
    assert torch.equal(found.popitem()[1], wide.half().float())


def test_inputs_round_as_they_come_in(packages):
    rounded, wide, _ = rounding(packages, "moved")
    x = drawn(rounded)["x"]
    want = torch.cat([x, x], 1).permute(3, 1, 2, 0)
    assert torch.equal(rounded.run({"x": x}).popitem()[1], want.half().float())
    assert torch.equal(wide.run({"x": x}).popitem()[1], want)


@pytest.mark.parametrize("name", ["norm", "softmax", "conv", "long_conv", "matmul"])
def test_wide_ops_round_once_at_their_end(packages, name):
    rounded, wide, held = rounding(packages, name)
    inputs = {key: value.half().float() for key, value in drawn(rounded).items()}
    (found,), (exact,) = rounded.run(inputs).values(), wide.run(inputs).values()
    assert torch.equal(found, exact.half().float())
    assert not torch.equal(found, exact)
    if held:
        want = F.conv2d(inputs["x"].double(), held["weight"].double())
        torch.testing.assert_close(exact, want.float(), rtol=1e-4, atol=1e-4)


def test_an_fp32_package_never_rounds(packages):
    path = packages / "op" / "mul.mlpackage"
    inputs = drawn(Machine(path))
    assert torch.equal(
        Machine(path, rounding=True).run(inputs).popitem()[1],
        Machine(path).run(inputs).popitem()[1],
    )


# weights


def dense_of(held):
    """Decode by the definition: every element finds its group or block by itself."""
    held = {key: value.numpy() for key, value in held.items()}
    if "lut" in held:
        indices, lut = held["indices"], held["lut"]
        width = lut.shape[-1]
        out = np.zeros((indices.shape[0] * width, *indices.shape[1:]), lut.dtype)
        for at in np.ndindex(indices.shape):
            group = tuple(a * g // n for a, g, n in zip(at, lut.shape, indices.shape, strict=False))
            for part in range(width):
                out[(at[0] * width + part, *at[1:])] = lut[(*group, indices[at], part)]
        held["data"] = out
    if "scale" not in held:
        return torch.from_numpy(held["data"])
    out = np.zeros(held["data"].shape, np.float16)
    for at in np.ndindex(out.shape):
        block = tuple(
            a * g // n for a, g, n in zip(at, held["scale"].shape, out.shape, strict=True)
        )
        shift = float(held["offset"][block]) if "offset" in held else 0.0
        out[at] = np.float16((float(held["data"][at]) - shift) * float(held["scale"][block]))
    return torch.from_numpy(out)


WEIGHTS = (
    "lut1",
    "lut2_grouped",
    "lut3",
    "lut4",
    "lut4_odd",
    "lut4_grouped",
    "lut4_columns",
    "lut6",
    "lut8",
    "lut4_fp32",
    "lut_vector",
    "int8",
    "int8_blocks",
    "uint8_offset",
    "int4",
    "uint4_offset",
    "scaled_lut",
)


@pytest.mark.parametrize("name", WEIGHTS)
def test_a_compressed_weight_decodes_to_its_definition(packages, name):
    path = packages / "weight" / f"{name}.mlpackage"
    machine = Machine(path)
    x = torch.zeros(machine.function.inputs[0].shape)
    (found,) = machine.run({"x": x}).values()
    assert torch.equal(found, dense_of(arrays(path)).float())


def test_all_weight_packages_are_tested(packages):
    assert sorted(WEIGHTS) == sorted(one.stem for one in (packages / "weight").glob("*.mlpackage"))


@given(
    st.sampled_from([one for one in DTYPES if one.bits in range(1, 9) and one.field == "bytes"]),
    st.lists(st.integers(0, 255), min_size=1, max_size=70),
)
def test_packed_values_are_a_stream_of_bits_lowest_first(dtype, values):
    stream = sum((value % 2**dtype.bits) << (at * dtype.bits) for at, value in enumerate(values))
    size = packed_bytes(dtype, len(values))
    raw = np.frombuffer(bytearray(stream.to_bytes(size, "little")), np.uint8)
    found = unpack(raw, dtype, len(values))
    half = 2 ** (dtype.bits - 1) if dtype.signed else 2**dtype.bits
    want = [(value % 2**dtype.bits + half) % 2**dtype.bits - half for value in values]
    want = want if dtype.signed else [value % 2**dtype.bits for value in values]
    assert found.tolist() == want
    assert found.dtype == np.dtype(dtype.held)


def test_an_index_beyond_its_table_is_refused():
    parts = {"indices": np.array([[0, 4]], np.uint8), "lut": np.zeros((1, 1, 4, 1), np.float16)}
    with pytest.raises(TopocError, match="an index exceeds its table of 4 entries"):
        lut_to_dense(parts, Place("here"))


def test_vectors_without_an_axis_are_refused():
    parts = {"indices": np.zeros((3, 2), np.uint8), "lut": np.zeros((1, 1, 4, 2), np.float16)}
    with pytest.raises(TopocError, match="a table of 2-vectors has no `vector_axis`"):
        lut_to_dense(parts, Place("here"))


def test_a_compressed_weight_of_what_is_no_constant_is_refused(broken):
    def change(spec, function, block):
        first(block, "constexpr_lut_to_dense").inputs["lut"].arguments[0].name = "x"

    (found,) = findings(lambda: Machine(broken("weight/lut4.mlpackage", change)))
    assert found.message == "`x` must be a constant here, and is none"


def test_compression_of_earlier_opsets_is_refused(broken):
    def change(spec, function, block):
        del first(block, "constexpr_lut_to_dense").inputs["indices"]

    (found,) = findings(lambda: Machine(broken("weight/lut4.mlpackage", change)))
    assert found.message.endswith("is a `constexpr_lut_to_dense`, which is not interpreted")


def test_groups_that_do_not_divide_a_weight_are_refused():
    parts = {"indices": np.zeros((3, 2), np.uint8), "lut": np.zeros((2, 1, 4, 1), np.float16)}
    with pytest.raises(TopocError, match="do not divide into"):
        lut_to_dense(parts, Place("here"))


# functions and states


def test_functions_of_a_package_share_decoded_weights(packages):
    path = packages / "two.mlpackage"
    package, held = Package(path), arrays(path)
    decode, prefill = Machine(package), Machine(package, "prefill")
    assert decode.function.name == "decode"
    assert {one.numel() for one in package.decoded.values()} == {128, 256}
    assert len(package.decoded) == 2
    assert decode._constants == prefill._constants
    lut = held["lut"].reshape(-1)[held["indices"].long()]
    for machine in (decode, prefill):
        x = drawn(machine)["x"]
        want = F.conv2d(F.conv2d(x, held["weight"].float()), lut.float())
        torch.testing.assert_close(machine.run({"x": x})["y"], want, rtol=1e-5, atol=1e-4)


def test_a_function_that_is_not_there_is_named(packages):
    with pytest.raises(
        TopocError, match="no function `verify`; its functions are `decode`, `prefill`"
    ):
        Machine(packages / "two.mlpackage", "verify")


@given(st.lists(st.integers(0, 3), min_size=1, max_size=6))
@settings(max_examples=25, deadline=None)
def test_a_state_is_what_was_written_into_it(packages, rows):
    machine = cached(packages / "state.mlpackage")
    states, cache = {}, torch.zeros(4, 3)
    total, before = (one.name for one in machine.function.outputs)
    for at, row in enumerate(rows):
        x = torch.full((1, 3), at + 1.0)
        place = {"at": np.array([row, 0], np.int32), "to": np.array([row + 1, 3], np.int32)}
        found = machine.run({"x": x, **place}, states=states)
        assert torch.equal(found[before], cache)
        cache[row] = x
        assert torch.equal(found[total], cache.sum(0))
        assert torch.equal(states["cache"], cache)


def test_without_states_every_run_starts_at_zero(packages):
    machine = cached(packages / "state.mlpackage")
    place = {"at": np.array([1, 0], np.int32), "to": np.array([2, 3], np.int32)}
    for _ in range(2):
        found = machine.run({"x": torch.ones(1, 3), **place})
        assert found[machine.function.outputs[0].name].tolist() == [1.0, 1.0, 1.0]


def test_a_state_shares_no_memory_with_outputs_or_earlier_states(packages):
    machine = cached(packages / "state.mlpackage")
    place = {"at": np.array([1, 0], np.int32), "to": np.array([2, 3], np.int32)}
    first = torch.zeros(4, 3)
    states = {"cache": first}
    found = machine.run({"x": torch.ones(1, 3), **place}, states=states)
    assert torch.equal(first, torch.zeros(4, 3))
    first[:] = 9.0
    assert torch.equal(found[machine.function.outputs[1].name], torch.zeros(4, 3))
    assert states["cache"].sum() == 3
    probed = machine.run({"x": torch.ones(1, 3), **place}, probes=["held"], states=states)
    probed["held"][:] = 9.0
    assert states["cache"].sum() == 3


def test_a_state_of_another_shape_is_refused(packages):
    machine = cached(packages / "state.mlpackage")
    with pytest.raises(TopocError, match=r"`cache` is float32 \(4, 2\); expected fp16 \(4, 3\)"):
        machine.run(drawn(machine), states={"cache": torch.zeros(4, 2)})


# refusals


def findings(call):
    with pytest.raises(TopocError) as caught:
        call()
    return caught.value.findings


def test_inputs_are_held_against_their_declaration(packages):
    machine = Machine(packages / "op" / "gather.mlpackage")
    good = drawn(machine)
    for bad, message in (
        ({"x": good["x"]}, "`at` is missing; expected int32 (2, 2)"),
        ({**good, "z": good["x"]}, "`z` is given, and the function has no such feature"),
        ({**good, "x": good["x"][:4]}, "`x` is float32 (4, 3); expected fp32 (5, 3)"),
        ({**good, "x": good["x"].double()}, "`x` is float64 (5, 3); expected fp32 (5, 3)"),
        ({**good, "at": good["at"].long()}, "`at` is int64 (2, 2); expected int32 (2, 2)"),
        ({**good, "at": good["at"].numpy() * 0.5}, "`at` is float64 (2, 2); expected int32 (2, 2)"),
    ):
        (found,) = findings(lambda bad=bad: machine.run(bad))
        assert (found.code, found.message) == ("bundle.feature", message)
        assert found.at.at.part == "main"
    assert len(findings(lambda: machine.run({"z": good["x"]}))) == 3


@pytest.fixture
def broken(packages, tmp_path):
    """A copy of a package, and a way to change its model or its weights."""

    def change(source, model=None, weights=None, manifest=None):
        path = tmp_path / "broken.mlpackage"
        shutil.rmtree(path, ignore_errors=True)
        shutil.copytree(packages / source, path)
        file = path / "Data/com.apple.CoreML/model.mlmodel"
        if model is not None:
            spec = messages().Model()
            spec.ParseFromString(file.read_bytes())
            (function, *_) = spec.mlProgram.functions.values()
            model(spec, function, function.block_specializations[function.opset])
            file.write_bytes(spec.SerializeToString())
        if weights is not None:
            blob = path / "Data/com.apple.CoreML/weights/weight.bin"
            blob.write_bytes(weights(bytearray(blob.read_bytes())))
        if manifest is not None:
            item = path / "Manifest.json"
            item.write_text(manifest(item.read_text()))
        return path

    return change


def set_bytes(at, value):
    def change(raw):
        raw[at : at + len(value)] = value
        return raw

    return change


RECORD = 64  # where the first record stands


@pytest.mark.parametrize(
    "weights, words",
    [
        (lambda raw: raw[:100], "is not inside the file"),
        (lambda raw: raw[:40], "shorter than its 64 byte header"),
        (lambda raw: raw[:-20], "has its data outside the file"),
        (set_bytes(RECORD, b"\0\0\0\0"), "starts with 0x00000000 instead of 0xdeadbeef"),
        (set_bytes(RECORD + 4, b"\2\0\0\0"), "has data type 2, and `fp16` is 1"),
        (set_bytes(RECORD + 8, b"\x07"), "has 7 bytes, and the declared type needs 64"),
        (set_bytes(RECORD + 16, b"\xff\xff\xff"), "has its data outside the file"),
        (set_bytes(4, b"\1"), "has version 1, and 2 is known"),
    ],
)
def test_broken_weights_are_refused_with_their_file_and_op(broken, weights, words):
    path = broken("fp16/conv.mlpackage", weights=weights)
    (found,) = findings(lambda: Machine(path))
    assert found.code == "bundle.unreadable-package"
    assert words in found.message
    place = str(found.at.at)
    assert "main/" in place or place.endswith("weight.bin")


def test_wrong_padding_of_a_sub_byte_record_is_refused(broken):
    path = broken("weight/lut3.mlpackage", weights=set_bytes(RECORD + 24, b"\x09"))
    (found,) = findings(lambda: Machine(path))
    assert "9 padding bits" in found.message


def test_missing_weights_are_refused(broken):
    path = broken("fp16/conv.mlpackage")
    (path / "Data/com.apple.CoreML/weights/weight.bin").unlink()
    (found,) = findings(lambda: Machine(path))
    assert found.message == "the weight file is not there"


@pytest.mark.parametrize(
    "manifest, words",
    [
        (
            lambda text: text.replace("com.apple.CoreML/model.mlmodel", "../../../model.mlmodel"),
            "outside",
        ),
        (lambda text: text.replace("com.apple.CoreML/weights", "../../elsewhere"), "outside"),
        (
            lambda text: text.replace("com.apple.CoreML/model.mlmodel", "gone.mlmodel"),
            "`gone.mlmodel` is not there",
        ),
        (lambda text: text.replace("rootModelIdentifier", "root"), "does not tell where"),
        (lambda text: text[:-5], "is no JSON"),
        (lambda _text: "[" * 9999, "is no JSON"),
        (lambda _text: "[]", "does not tell where"),
    ],
)
def test_a_manifest_that_leads_astray_is_refused(broken, manifest, words):
    path = broken("fp16/conv.mlpackage", manifest=manifest)
    (found,) = findings(lambda: Package(path))
    assert found.code == "bundle.unreadable-package"
    assert words in found.message
    assert found.help


def test_a_link_out_of_the_package_is_refused(broken, tmp_path):
    path = broken("fp16/conv.mlpackage")
    weights = path / "Data/com.apple.CoreML/weights"
    shutil.move(weights, tmp_path / "elsewhere")
    weights.symlink_to(tmp_path / "elsewhere")
    assert "outside the package" in findings(lambda: Package(path))[0].message


def test_what_is_no_package_is_refused(tmp_path, broken):
    (found,) = findings(lambda: Package(tmp_path))
    assert found.message == "`Manifest.json` is not there"
    path = broken("fp16/conv.mlpackage")
    (path / "Data/com.apple.CoreML/model.mlmodel").write_bytes(b"\xff" * 50)
    assert findings(lambda: Package(path))[0].message == "the model is not a Core ML protobuf"
    (path / "Data/com.apple.CoreML/model.mlmodel").write_bytes(b"")
    assert findings(lambda: Package(path))[0].message == "the model is not an ML program"


def first(block, kind):
    return next(op for op in block.operations if op.type == kind)


def test_ops_without_a_kernel_are_all_named_before_anything_runs(broken):
    def change(spec, function, block):
        for op, kind in zip(
            (one for one in block.operations if one.type == "mul"), "uv", strict=True
        ):
            op.type = f"ios18.frobnicate_{kind}"

    found = findings(lambda: Machine(broken("fp16/chain.mlpackage", change)))
    assert [one.code for one in found] == ["bundle.op-not-interpreted"] * 2
    assert found[0].message == (
        "op `first` of function `main` is a `frobnicate_u`, which is not interpreted"
    )
    assert str(found[0].at.at).endswith("model.mlmodel: main/first")


def test_an_op_with_a_version_in_its_name_is_the_same_op(broken):
    def change(spec, function, block):
        first(block, "conv").type = "ios15.conv"

    Machine(broken("fp16/conv.mlpackage", change))


def flexible_input(spec, function, block):
    function.inputs[0].type.tensorType.dimensions[1].unknown.variadic = False


def valueless(spec, function, block):
    del first(block, "const").attributes["val"]


def rename_output(spec, function, block):
    first(block, "add").outputs[0].name = "first"


def unknown_input(spec, function, block):
    first(block, "add").inputs["x"].arguments[0].name = "nowhere"


def resize(spec, function, block):
    first(block, "mul").outputs[0].type.tensorType.dimensions[0].constant.size = 3


def flexible(spec, function, block):
    first(block, "mul").outputs[0].type.tensorType.dimensions[0].unknown.variadic = False


def redescribe(spec, function, block):
    spec.description.input[0].type.multiArrayType.shape[1] = 9


def rename_feature(spec, function, block):
    spec.description.input[0].name = "z"


def shorten(spec, function, block):
    values = [op.attributes["val"] for op in block.operations if op.type == "const"]
    half = next(one for one in values if one.type.tensorType.dataType == 10)
    half.immediateValue.tensor.bytes.values = b"\0\0\0\0\0"


@pytest.mark.parametrize(
    "change, code, words",
    [
        (rename_output, "bundle.unreadable-package", "no op of function `main` makes"),
        (unknown_input, "bundle.unreadable-package", "`nowhere` is read before any op makes it"),
        (flexible, "bundle.op-not-interpreted", "gives fp16 (-1, 8, 1, 4)"),
        (flexible_input, "bundle.op-not-interpreted", "takes `x` as fp16 (1, -1, 1, 4)"),
        (valueless, "bundle.op-not-interpreted", "is a `const`, which is not interpreted"),
        (redescribe, "bundle.unreadable-package", "`x` is described as fp16 (1, 9, 1, 4)"),
        (rename_feature, "bundle.unreadable-package", "the description lists the inputs z"),
        (shorten, "bundle.unreadable-package", "has 5 bytes, not those of 1 values"),
    ],
)
def test_a_model_that_contradicts_itself_is_refused(broken, change, code, words):
    (found,) = findings(lambda: Machine(broken("fp16/chain.mlpackage", change)))
    assert found.code == code
    assert words in found.message


def test_two_values_of_one_name_are_refused(broken):
    def change(spec, function, block):
        block.operations.add().CopyFrom(first(block, "mul"))

    (found,) = findings(lambda: Machine(broken("fp16/chain.mlpackage", change)))
    assert found.message == "two values of `main` are named `first`"


def test_a_result_that_is_not_as_declared_is_refused_in_the_first_run(broken):
    machine = Machine(broken("fp16/chain.mlpackage", resize))
    (found,) = findings(lambda: machine.run(drawn(machine)))
    assert found.message == (
        "`mul` computes float32 (1, 8, 1, 4) and declares `first` as fp16 (3, 8, 1, 4)"
    )


def test_a_use_of_an_op_that_has_no_kernel_is_refused(broken):
    def change(spec, function, block):
        mode = first(block, "gelu").inputs["mode"].arguments[0].name
        const = next(op for op in block.operations if op.outputs[0].name == mode)
        const.attributes["val"].immediateValue.tensor.strings.values[0] = "SWIFT"

    (found,) = findings(lambda: Machine(broken("op/gelu_exact.mlpackage", change)))
    assert found.code == "bundle.op-not-interpreted"
    assert "is a `gelu` of mode `SWIFT`, which is not interpreted" in found.message


# coremltools beside its messages

PROTO_FIRST = """
from topoc.lowering.coreml_proto import messages, mil
Model, Program = messages().Model, mil().Program
import sys
assert not {"coremltools", "torch", "numpy"} & sys.modules.keys()
"""
REAL = """
import logging, sys
logging.getLogger("coremltools").setLevel(logging.ERROR)
sys.modules.update(dict.fromkeys(("torch", "sklearn", "transformers")))
import coremltools as ct
"""
BOTH = """
assert ct.proto.Model_pb2.Model is Model and ct.proto.MIL_pb2.Program is Program
spec = ct.utils.load_spec({path!r})
assert type(spec) is Model
from coremltools.converters.mil import Builder as mb
@mb.program(input_specs=[mb.TensorSpec((1,))])
def program(x):
    return mb.add(x=x, y=1.0)
assert type(ct.convert(program, skip_model_load=True).get_spec()) is Model
"""
REAL_FIRST = """
from topoc.lowering.coreml_proto import messages, mil
Model, Program = messages().Model, mil().Program
assert sys.modules["coremltools"] is ct
"""


@pytest.mark.parametrize(
    "order",
    [PROTO_FIRST, PROTO_FIRST + REAL + BOTH, REAL + REAL_FIRST + BOTH],
    ids=["alone", "before", "after"],
)
def test_messages_and_coremltools_live_in_one_process(packages, tmp_path, order):
    path = str(packages / "two.mlpackage")
    subprocess.run(
        [sys.executable, "-c", order.replace("{path!r}", repr(path))],
        check=True,
        env={**os.environ, "TMPDIR": str(tmp_path), "TQDM_DISABLE": "1"},
    )
