"""Packages: what coremltools' own exporter would write, each weight once, the same every time."""

import os
import re
import subprocess
import sys
from collections import Counter
from functools import partial
from pathlib import Path
from struct import unpack_from

import numpy as np
import pytest
import torch
from attrs import evolve
from tiny_topology import (
    BOTH,
    HALVES,
    WHOLE,
    Drawn,
    load_tiny,
    package_bytes,
    without_post_norms,
    write_package,
)

from topoc.lowering.interpret.package import Package
from topoc.lowering.interpret.reference import evaluate
from topoc.lowering.ir import Binding, DType, Input, Output, Program, TensorType, Value, Weight
from topoc.lowering.manifest import Sink, Source
from topoc.lowering.ops.cache import PadRow
from topoc.lowering.ops.linear import Linear
from topoc.lowering.plan import plan
from topoc.lowering.rescale import Scales
from topoc.lowering.text import parse
from topoc.lowering.verify import is_legal

TESTS = Path(__file__).parent
GOLDEN = TESTS / "golden" / "emit"
WEIGHTS = "Data/com.apple.CoreML/weights/weight.bin"
MODEL = "Data/com.apple.CoreML/model.mlmodel"
EMBEDS = WHOLE.replace("L0", "embed + L0")
SCALES = Scales(
    residual=(0.25, 0.25, 0.125, 0.125, 0.125),
    branches=((2.0, 8.0), (1.0, 1.0), (1.0, 1.0), (1.0, 1.0)),
)
KV = "kv {\n    sliding: write shift, row padded(heads = 5)\n    full: write blend\n  }"
WRITTEN = f"{BOTH}\n  {KV}"


def laid_out(folder, *, dtype=DType.FP16, body=WRITTEN, changed=None, **options):
    """The plan of a tiny topology that holds every kind of op."""
    options = {"final_logit_softcapping": 30.0} | options
    topology, architecture = load_tiny(folder, body, **options)
    architecture = changed(architecture) if changed else architecture
    return plan(topology, architecture, dtype=dtype, scales=SCALES)


def packages(folder, **options):
    """Every package of a tiny topology, written."""
    laid = laid_out(folder, **options)
    drawn = Drawn.of(*(one for package in laid.packages for one in package.programs))
    return [
        (package, write_package(package.programs, drawn, folder / package.path, laid.dtype))
        for package in laid.packages
    ]


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    ((package, path),) = packages(tmp_path_factory.mktemp("whole"))
    return package, path


def records(path):
    """(offset, bytes) of each record of a weight file, by its headers."""
    data = (path / WEIGHTS).read_bytes()
    count, version = unpack_from("<II", data)
    assert (version, data[8:64]) == (2, bytes(56))
    at, found = 64, []
    while at < len(data):
        sentinel, _, size, start, padding = unpack_from("<IIQQQ", data, at)
        assert (sentinel, start, padding) == (0xDEADBEEF, at + 64, 0)
        assert data[at + 32 : at + 64] == bytes(32)
        found.append((at, size))
        at = (start + size + 63) // 64 * 64
    assert len(found) == count
    return found


# the oracle


def as_coremltools_would(programs, drawn, folder, dtype):
    """The same MIL program with real arrays, by coremltools alone."""
    from coremltools_peer import drawn_arrays, through_coremltools

    told = {"made": "by a test"}
    return through_coremltools(programs, folder, dtype, drawn_arrays(drawn), metadata=told)


@pytest.mark.parametrize("dtype", [DType.FP16, DType.FP32], ids=lambda one: one.value)
def test_the_bytes_are_those_of_coremltools_own_exporter(dtype, tmp_path):
    laid = laid_out(tmp_path, dtype=dtype)
    (package,) = laid.packages
    assert [one.name for one in package.programs] == ["decode", "prefill_5"]
    drawn = Drawn.of(*package.programs)
    path = write_package(package.programs, drawn, tmp_path / "ours.mlpackage", dtype)
    model, weights = as_coremltools_would(package.programs, drawn, tmp_path / "theirs", dtype)
    assert (path / WEIGHTS).read_bytes() == weights
    assert (path / MODEL).read_bytes() == model


# weights


def test_functions_share_each_weight(whole):
    package, path = whole
    assert len(package.programs) == 2
    found = records(path)
    # a gain stands twice in its record; the zeros of padded rows are no weights
    weights = {w for program in package.programs for w in program.weights}
    sizes = {w.key: w.type.bytes * (3 - len(w.type.shape)) for w in weights}
    records_of = Counter(size for _, size in found)
    assert not Counter(sizes.values()) - records_of
    literals = records_of - Counter(sizes.values())
    assert literals.total() == 2  # as wide as a cache's slots, and as wide as a call
    stored = (path / WEIGHTS).stat().st_size
    assert stored <= 1.01 * (sum(sizes.values()) + literals_bytes(literals)) + 128 * len(found)


def literals_bytes(literals):
    return sum(size * count for size, count in literals.items())


def places(path):
    """The records that each function's constants refer to."""
    package = Package(path)
    return {
        name: {
            op.name: op.value.blobFileValue.offset
            for op in function.ops
            if op.type == "const" and op.value.WhichOneof("value") == "blobFileValue"
        }
        for name, function in package.functions.items()
    }


def test_functions_refer_to_the_same_records(whole):
    _, path = whole
    decode, prefill = places(path).values()
    weights = {name: at for name, at in decode.items() if name.startswith("w_")}
    assert weights == {name: at for name, at in prefill.items() if name.startswith("w_")}
    assert len(set(weights.values())) == len(weights) > 30


def test_every_record_is_referred_to_and_every_reference_has_a_record(whole):
    _, path = whole
    referred = {at for function in places(path).values() for at in function.values()}
    assert referred == {at for at, _ in records(path)}


def test_a_tied_head_and_an_embedding_in_the_graph_share_a_record(tmp_path):
    ((package, path),) = packages(tmp_path, chunks=EMBEDS)
    table = next(w for p in package.programs for w in p.weights if w.role == "embed")
    for function in places(path).values():
        offsets = [at for name, at in function.items() if name.startswith("w_embed")]
        assert len(offsets) == 2
        assert len(set(offsets)) == 1
    assert sum(size == table.type.bytes for _, size in records(path)) == 1


def test_an_untied_head_has_a_record_of_its_own(tmp_path):
    ((_, path),) = packages(tmp_path, chunks=EMBEDS, tie_word_embeddings=False)
    for function in places(path).values():
        assert function["w_embed"] != function["w_head"]


def projection(shape, **recipe):
    """A program of one projection."""
    x = Value("x", TensorType(DType.FP16, (1, shape[1], 1, 1)))
    op = Linear(x, Weight("w", TensorType(DType.FP16, shape), **recipe))
    y = Value("y", op.result_type())
    given = Input(x, Source(kind="value", name="x"))
    return Program("main", (given,), (Binding((y,), op),), (Output(y, Sink(kind="value")),))


def test_a_weight_of_few_elements_holds_its_own_values(tmp_path):
    from topoc.lowering.interpret.machine import Machine

    program = projection((3, 2))
    drawn = Drawn.of(program)
    told = []
    path = tmp_path / "p.mlpackage"
    write_package((program,), drawn, path, DType.FP16, told=told.append)
    assert told == [12]  # its bytes, told as they are read
    assert records(path) == []  # they stand in the model itself
    found = Machine(path).run({"x": torch.tensor([1.0, -2.0]).reshape(1, 2, 1, 1)})["y"]
    wanted = drawn.whole("w").half().float() @ torch.tensor([1.0, -2.0])
    assert torch.allclose(found.flatten(), wanted)
    assert wanted.abs().min() > 0


def test_one_tensor_under_two_recipes_is_two_records(tmp_path):
    one, other = projection((4, 8)), projection((4, 8), factor=0.5)
    path = write_package(
        (one, evolve(other, name="half")), Drawn.of(one), tmp_path / "p.mlpackage", DType.FP16
    )
    first, second = records(path)
    data = (path / WEIGHTS).read_bytes()
    read = [np.frombuffer(data, np.float16, 32, at + 64) for at, _ in (first, second)]
    assert np.array_equal(read[0] / 2, read[1])


def test_a_weight_that_leaves_fp16_by_its_recipe_is_told(tmp_path):
    from topoc.dsl.diagnostic import TopocError

    program = projection((4, 8), factor=1e6)
    with pytest.raises(TopocError, match="leaves fp16"):
        write_package((program,), Drawn.of(program), tmp_path / "p.mlpackage", DType.FP16)


def test_a_constant_of_the_graph_is_stored_once_for_all_functions(tmp_path):
    x = Value("x", TensorType(DType.FP16, (1, 2, 5, 4)))
    op = PadRow(x, 4, 4)
    y = Value("y", op.result_type())
    given = Input(x, Source(kind="value", name="x"))
    programs = tuple(
        Program(name, (given,), (Binding((y,), op),), (Output(y, Sink(kind="value")),))
        for name in ("one", "two")
    )
    path = write_package(programs, Drawn({}), tmp_path / "p.mlpackage", DType.FP16)
    assert [size for _, size in records(path)] == [2 * 2 * 5 * 4]


# names, ops, types


@pytest.fixture(scope="module")
def kinds(tmp_path_factory):
    """Functions of every kind of topology."""
    options = [
        {},
        {"chunks": EMBEDS.replace("argmax", "topk = 5")},
        {"chunks": HALVES, "body": BOTH},
        {"chunks": WHOLE.replace("argmax", "hidden"), "changed": without_post_norms},
        {"changed": partial(evolve, activation="silu", final_softcap=None)},
        {"chunks": "chunk e = embed\n  chunk l = L0-3\n  chunk n = norm\n  chunk h = head(logits)"},
        {"dtype": DType.FP32},
    ]
    found = []
    for at, one in enumerate(options):
        written = packages(tmp_path_factory.mktemp(f"k{at}"), **one)
        found += [f for _, path in written for f in Package(path).functions.values()]
    return found


def test_every_name_of_a_function_is_its_own_and_legal(kinds):
    for function in kinds:
        names = [one.name for one in function.inputs]
        names += [one.name for op in function.ops for one in op.outputs]
        assert len(set(names)) == len(names), [one for one in names if names.count(one) > 1]
        own = [op.name for op in function.ops]
        assert len(set(own)) == len(own)
        for name in {*names, *own}:
            assert is_legal(name), name


def test_a_value_called_like_the_inside_of_an_emitter_keeps_its_name(tmp_path):
    from topoc.lowering.interpret.machine import Machine

    program = parse(
        """\
program decode(
  %w_norm: fp32[1,2,1,1] = value(name=x)
) {
  %y_mirrored: fp32[1,2,1,1] = scale(x=%w_norm, factor=3.0)
  %y: fp32[1,2,1,1] = rms_norm(x=%w_norm, gain=@(norm: fp32[2]), eps=0.0, axis=1)
  %z: fp32[1,2,1,1] = add(x=%y, y=%y_mirrored)
  return %z -> value(name=z)
}
"""
    )
    drawn = Drawn.of(program)
    path = write_package((program,), drawn, tmp_path / "p.mlpackage", DType.FP32)
    (function,) = Package(path).functions.values()
    names = [one.name for op in function.ops for one in op.outputs]
    assert len({*names, "w_norm"}) == len(names) + 1
    x = torch.tensor([3.0, -4.0]).reshape(1, 2, 1, 1)
    wanted = evaluate(program, {program.inputs[0].value: x}, drawn.fetch)
    found = Machine(path).run({"w_norm": x})["z"]
    assert torch.allclose(found, wanted[program.outputs[0].value])


def test_no_input_is_unused_and_no_op_dead(kinds):
    for function in kinds:
        read = {one for op in function.ops for many in op.inputs.values() for one in many}
        read |= {one.name for one in function.outputs}
        made = [{one.name} for one in function.inputs]
        made += [{one.name for one in op.outputs} for op in function.ops]
        assert all(names & read for names in made)


def test_ranks_and_types_are_those_that_the_neural_engine_takes(kinds):
    for function in kinds:
        dtypes = {one.dtype for one in (*function.inputs, *function.outputs)}
        assert dtypes <= {"fp16", "int32"} or dtypes <= {"fp32", "int32"}
        for op in function.ops:
            for one in op.outputs:
                assert len(one.shape) <= 5
                assert min(one.shape, default=1) >= 1


def test_no_float_of_an_fp16_function_is_fp32(kinds):
    for function in kinds:
        floats = {one.dtype for op in function.ops for one in op.outputs} & {"fp16", "fp32"}
        assert len(floats) == 1


def test_only_these_ops_are_emitted(kinds, golden):
    found = sorted({op.type for function in kinds for op in function.ops})
    golden(GOLDEN / "ops.expect", "\n".join(found) + "\n")


def test_the_functions_stand_in_the_order_of_the_plan(whole):
    package, path = whole
    from topoc.lowering.coreml_proto import messages

    model = messages().Model()
    model.ParseFromString((path / MODEL).read_bytes())
    described = [one.name for one in model.description.functions]
    assert described == [one.name for one in package.programs]
    assert model.description.defaultFunctionName == described[0]
    for one, program in zip(model.description.functions, package.programs, strict=True):
        assert [f.name for f in one.input] == [i.value.name for i in program.inputs]
        assert [f.name for f in one.output] == [o.value.name for o in program.outputs]
    assert dict(model.description.metadata.userDefined) == {"made": "by a test"}


def test_what_mil_infers_otherwise_is_refused(tmp_path):
    program = projection((4, 8))
    (binding,) = program.bindings
    wrong = evolve(binding.result, type=TensorType(DType.FP16, (1, 4, 1, 2)))
    broken = evolve(
        program,
        bindings=(evolve(binding, results=(wrong,)),),
        outputs=(Output(wrong, Sink(kind="value")),),
    )
    with pytest.raises(TypeError, match="%y is"):
        write_package((broken,), Drawn.of(program), tmp_path / "p.mlpackage", DType.FP16)


def test_the_package_is_one_that_coremltools_reads(whole):
    from topoc.lowering.emit.mil.toolkit import toolkit

    toolkit()
    from coremltools.libmodelpackage import ModelPackage

    _, path = whole
    assert ModelPackage.isValid(str(path))
    names = {str(one.relative_to(path)) for one in path.rglob("*") if one.is_file()}
    assert names == {"Manifest.json", MODEL, WEIGHTS}
    text = (path / "Manifest.json").read_text()
    assert len(set(re.findall(r"[0-9A-F-]{36}", text))) == 2


# the same bytes every time

SCRIPT = """
import hashlib, sys
from pathlib import Path
from test_emit import packages
from tiny_topology import package_bytes
if {blocked}:
    class Blocker:
        def find_spec(self, name, path=None, target=None):
            if name.rpartition(".")[2] in {names}:
                raise ImportError(name)
    sys.meta_path.insert(0, Blocker())
for _, path in packages(Path(sys.argv[1])):
    for name, data in package_bytes(path).items():
        print(name, hashlib.sha256(data).hexdigest())
loaded = [one for one in sys.modules if one.rpartition(".")[2] in {names}]
assert not ({blocked} and loaded), loaded
"""
NATIVE = ("libmilstoragepython", "libmodelpackage", "libcoremlpython")


def digests(path):
    from hashlib import sha256

    return [f"{name} {sha256(data).hexdigest()}" for name, data in package_bytes(path).items()]


def test_two_packages_of_one_process_are_the_same(whole, tmp_path):
    _, path = whole
    ((_, again),) = packages(tmp_path)
    assert package_bytes(again) == package_bytes(path)


@pytest.mark.parametrize("blocked", [False, True], ids=["as it is", "without native libraries"])
def test_a_fresh_process_writes_the_same(blocked, whole, tmp_path):
    _, path = whole
    script = SCRIPT.format(blocked=blocked, names=NATIVE)
    environment = os.environ | {"PYTHONPATH": str(TESTS), "PYTHONHASHSEED": "7" if blocked else "3"}
    done = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path)],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == digests(path)
    assert done.stderr == ""
