"""Compressed bundles: what they hold is what the recipes say, made once, the same every time."""

import os
import random
import shutil
import signal
import sys
from itertools import groupby
from math import prod
from multiprocessing import get_context
from zlib import crc32

import numpy as np
import pytest
from click.testing import CliRunner
from compiled import resolved as resolved_text
from compiled import topology_text
from tiny_checkpoint import four_layers, tiny
from twins import int4, with_weights

import topoc.lowering.compress.compress
from topoc.dsl.cli import main
from topoc.dsl.load import load
from topoc.dsl.model import Scheme
from topoc.lowering.architecture import read
from topoc.lowering.bundle.digest import tree_digest
from topoc.lowering.bundle.reader import open_bundle
from topoc.lowering.checkpoint.bind import bind
from topoc.lowering.checkpoint.open import open_checkpoint
from topoc.lowering.compiler import Request, compile_bundle
from topoc.lowering.compress.cache import Cache
from topoc.lowering.compress.dequantise import dense
from topoc.lowering.compress.layout import WIDTHS, constants, height
from topoc.lowering.compress.packing import pack
from topoc.lowering.compress.parts import Compressed, Part, part
from topoc.lowering.compressed import Compressor
from topoc.lowering.emit.mil import emit
from topoc.lowering.interpret.constants import Constants
from topoc.lowering.interpret.package import Package
from topoc.lowering.ir import DType
from topoc.lowering.package import ALIGNMENT, prepare, write_description
from topoc.lowering.plan import plan
from topoc.lowering.recipes import matrices
from topoc.lowering.stored import Rounded
from topoc.lowering.weight_file import Constants as Placing

TWO = "chunk one = L0-1\n  chunk two = L2-3 + norm + head(argmax)"
INDIVISIBLE = "quant.indivisible-group"
OTHERS = "chunk most = L0-2\n  chunk rest = L3 + norm + head(argmax)"


def scheme(name, **arguments):
    return Scheme(name=name, arguments=tuple(arguments.items()))


PALETTE = scheme("palettize", bits=4, group=16, lut="fp16")
SCHEMES = {
    "1 bit, one table": (scheme("palettize", bits=1, group="per_tensor", lut="fp16"),),
    "2 bits": (scheme("palettize", bits=2, group=32, lut="fp16"),),
    "3 bits": (scheme("palettize", bits=3, group=32, lut="fp16"),),
    "6 bits": (scheme("palettize", bits=6, group=32, lut="fp16"),),
    "8 bits, one table": (scheme("palettize", bits=8, group="per_tensor", lut="fp16"),),
    "4 bits, int8 tables": (scheme("palettize", bits=4, group=32, lut="int8"),),
    "int8": (scheme("int8", per="channel"),),
    "int8, one scale": (scheme("int8", per="tensor"),),
    "int4": (scheme("int4", block=32),),
    "pruned": (scheme("prune", n=2, m=4),),
    "pruned, 4 bits": (scheme("prune", n=2, m=4), PALETTE),
}


def drawn(source, how, *_, pad_groups=False):
    """Constants of a weight's shape with any numbers in them: what they mean is all that counts."""
    rng = np.random.default_rng(crc32(source.name.encode()))
    parts = {}
    for name, (dtype, shape) in constants(how, source.shape).items():
        if dtype == "fp16":
            parts[name] = part(dtype, rng.normal(0.0, 0.1, shape).astype(np.float16))
        elif "mask" in name:
            kept = np.tile(np.arange(how.m) >= how.n, (prod(shape) // how.m, 1))
            parts[name] = Part(dtype, shape, pack(rng.permuted(kept, axis=1).view(np.uint8), 1))
        else:
            values = rng.integers(0, 256, prod(shape), np.uint8) >> (8 - WIDTHS[dtype])
            parts[name] = Part(dtype, shape, pack(values, WIDTHS[dtype]))
    assert pad_groups or height(how, source.shape[0]) == source.shape[0]
    return Compressed(how, source.shape[0], parts)


@pytest.fixture
def fast(monkeypatch):
    monkeypatch.setattr(topoc.lowering.compress.compress, "compress", drawn)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Where the checkpoints and the shared cache are."""
    return tmp_path_factory.mktemp("compressed")


class Emitted:
    """The packages of a plan, compressed, without all that a bundle has beside them."""

    def __init__(self, topology, checkpoint, folder):
        weights = bind(open_checkpoint("random:0"), read(checkpoint))
        self.packages = plan(topology, read(checkpoint)).packages
        recipes = {role: how for one in self.packages for role, how in one.recipes.items()}
        self.rounded = Rounded(weights, lambda _: None)
        self.compressor = Compressor(weights, recipes, "random", Cache(folder / "cache"))

    def write(self, package, path):
        constants = Placing(self.rounded, self.compressor.get)
        emission = emit(package.programs, dtype=DType.FP16, recipes=package.recipes)
        constants.write(emission.records, prepare(path))
        write_description(path, emission.serialised(constants.values, {}))
        return path


def decoded(path, function):
    """By the name of the op, what each of a function's convolutions multiplies with."""
    package = Package(path)
    found = package.functions[function]
    constants = Constants(package, found)
    return {
        op.outputs[0].name: constants.array(op.inputs["weight"][0], None)
        for op in found.ops
        if op.type == "conv"
    }


def check_constants(emitted, package, path):
    for program in package.programs:
        found = decoded(path, program.name)
        linear = [b for b in program.bindings if set(b.op.weights) & set(matrices([program]))]
        assert len(found) == len(linear) > 0
        for binding in linear:
            weight = binding.op.weight
            expected = dense(emitted.compressor.get(weight))[:, :, None, None]
            name = binding.result.name
            value = found[name] if name in found else found[f"{name}_padded"]
            np.testing.assert_array_equal(value, expected, strict=True, err_msg=weight.key)


@pytest.fixture(scope="module")
def small(folder):
    """A config of few and small matrices, for compiles that are repeated."""
    (folder / "small").mkdir()
    four_layers(folder / "small")
    return folder / "small"


@pytest.mark.parametrize("name", SCHEMES)
def test_constants_of_every_scheme(name, small, fast, tmp_path):
    topology = with_weights(resolved_text(topology_text(chunks=TWO), small), SCHEMES[name])
    emitted = Emitted(topology, small, tmp_path)
    package = emitted.packages[-1]
    check_constants(emitted, package, emitted.write(package, tmp_path / package.path))


def request_of(small, cache_, chunks=TWO, **options):
    """A compile at four bits whose packages have two functions each."""
    text = topology_text(chunks=chunks, functions="decode, prefill(tokens = 4)")
    return Request(
        topology=with_weights(resolved_text(text, small), int4()),
        architecture=read(small),
        reader=open_checkpoint("random:0"),
        cache=cache_,
        **options,
    )


@pytest.fixture(scope="module")
def undisturbed(small, folder):
    target, kept = folder / "undisturbed", Cache(folder / "first")
    return target, compile_bundle(request_of(small, kept), target), kept


def test_weight_file_has_each_compressed_weight_once_for_all_functions(undisturbed):
    target, manifest, _ = undisturbed
    gains = {}
    for package in sorted(target.glob("*.mlpackage")):
        opened = Package(package)
        assert len(opened.functions) == 2
        places = []
        for function in opened.functions.values():
            found = {
                (name, bound[0].blobFileValue.offset)
                for op in function.ops
                if op.type == "constexpr_lut_to_dense"
                for name, bound in op.inputs.items()
            }
            places.append(found)
        assert places[0] == places[1]
        gains[package.name] = len(places[0])
    assert sum(gains.values()) == 2 * len(manifest.quantization.tensors)


def test_manifest_tells_schemes_sizes_and_signal_to_noise(undisturbed):
    _, manifest, _ = undisturbed
    told = manifest.quantization
    roles = {key: sum(x.bytes for x in those) for key, those in by_role(told.tensors)}

    assert told.bytes == roles
    assert {one.scheme for one in told.tensors} == {"palettize(bits = 4, group = 32)"}
    assert all(15 < one.sqnr < 40 for one in told.tensors)
    (head,) = [one for one in told.tensors if one.role == "head"]
    assert head.bytes == 160 * 64 // 2 + 160 // 32 * 16 * 2
    assert {one.layer for one in told.tensors} == {None, *range(4)}


def by_role(tensors):
    return groupby(sorted(tensors, key=lambda one: one.role), key=lambda one: one.role)


def test_second_compile_compresses_nothing_and_moves_chunks(undisturbed, small, tmp_path):
    _, _, cache_ = undisturbed
    before = {one.key: one.bytes for one in cache_.entries()}
    counted = counting()
    with counted as made:
        compile_bundle(request_of(small, cache_, OTHERS), tmp_path / "b")

    assert made == []
    assert {one.key: one.bytes for one in cache_.entries()} == before


def counting():
    """The names of weights that are compressed meanwhile."""
    patch, made = pytest.MonkeyPatch(), []
    true = topoc.lowering.compress.compress.compress

    def counted(source, *arguments, **options):
        made.append(source.name)
        return true(source, *arguments, **options)

    class Context:
        def __enter__(self):
            patch.setattr(topoc.lowering.compress.compress, "compress", counted)
            return made

        def __exit__(self, *_):
            patch.undo()

    return Context()


@pytest.mark.parametrize("options", [{"jobs": 2}, {"cache_": None}])
def test_bytes_do_not_depend_on_processes_or_the_cache(options, undisturbed, small, folder):
    target, manifest, _ = undisturbed
    request = request_of(small, **({"cache_": Cache(folder / "two")} | options))
    assert compile_bundle(request, folder / "again") == manifest
    assert tree_digest(folder / "again") == tree_digest(target)


def test_one_chunk_is_rebuilt_and_the_manifest_stays(undisturbed, small, tmp_path):
    target, manifest, cache_ = undisturbed
    shutil.copytree(target, tmp_path / "b")
    request = request_of(small, cache_, only_chunk="two")

    assert compile_bundle(request, tmp_path / "b") == manifest


def test_flipped_byte_in_the_cache_is_noticed(undisturbed, small, tmp_path):
    target, _, cache_ = undisturbed
    kept = shutil.copytree(cache_.root, tmp_path / "cache")
    some = sorted(kept.glob("*.weight"))[7]
    data = bytearray(some.read_bytes())
    data[-100] ^= 4
    some.write_bytes(data)
    with counting() as made:
        compile_bundle(request_of(small, Cache(kept)), tmp_path / "b")

    assert len(made) == 1
    assert tree_digest(tmp_path / "b") == tree_digest(target)
    assert some.read_bytes() == (cache_.root / some.name).read_bytes()


MOMENTS = 10
STEPS = frozenset(
    {"open", "os.link", "os.mkdir", "os.remove", "os.rename", "os.rmdir", "os.truncate"}
)
"""What a compile asks of the disk, as Python's audit events; a kill comes just before one."""


def begin(request, target, at, told):
    """A compile in a process that kills itself before a step, or tells how many there were."""

    def run():
        count = 0

        def step(event, _):
            nonlocal count
            if event in STEPS:
                count += 1
                if count == at:
                    os.kill(os.getpid(), signal.SIGKILL)

        sys.addaudithook(step)
        compile_bundle(request, target)
        told.write_text(str(count))

    child = get_context("fork").Process(target=run)
    child.start()
    child.join()
    return child.exitcode


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_killed_compiles_leave_what_they_made(undisturbed, small, tmp_path):
    """Killed at ten moments of the whole compile, every other time over an older bundle."""
    target, manifest, _ = undisturbed
    old, all_ = Cache(tmp_path / "old"), len(manifest.quantization.tensors)
    before = compile_bundle(request_of(small, old, OTHERS), tmp_path / "older")
    request = request_of(small, Cache(tmp_path / "cache"))
    assert begin(request, tmp_path / "counted", -1, tmp_path / "steps") == 0
    assert tree_digest(tmp_path / "counted") == tree_digest(target)
    steps, chosen, left = int((tmp_path / "steps").read_text()), random.Random(6), set()
    for nth in range(MOMENTS):
        kept, b = Cache(tmp_path / f"cache{nth}"), tmp_path / f"b{nth}"
        if nth % 2:
            shutil.copytree(tmp_path / "older", b)
        at = (nth * steps + chosen.randrange(steps)) // MOMENTS + 1
        assert begin(request_of(small, kept), b, at, tmp_path / "killed") == -signal.SIGKILL
        if b.exists():
            assert open_bundle(b).manifest in (before, manifest)
        left.add(there := len(list(kept.root.glob("*.weight"))))
        with counting() as made:
            compile_bundle(request_of(small, kept), b)

        assert len(made) == all_ - there
        assert tree_digest(b) == tree_digest(target)
    assert {0, all_} < left, left
    assert not (tmp_path / "killed").exists()


def test_stored_bytes_of_the_plan_are_those_of_the_file(undisturbed, small):
    from topoc.lowering.cli.plan.gather import gather

    target, _, _ = undisturbed
    request = request_of(small, None)
    laid = plan(request.topology, request.architecture)
    for chunk in gather(laid)["chunks"]:
        (file,) = (target / f"{chunk['name']}.mlpackage").rglob("weight.bin")
        literals = file.stat().st_size - chunk["stored_bytes"]
        assert -ALIGNMENT < literals < 4096  # the last record ends where its data do


THREE = """topology three extends swa4 {
  functions decode, prefill(tokens = 64), verify(tokens = 3)
  quantize { weights: palettize(bits = 4, group = 32) }
}
"""


def test_full_size_file_is_hardly_larger_than_its_compressed_weights(tmp_path):
    """Of E2B with three functions, by the plan: gains, headers and alignment are the rest."""
    from topoc.lowering.cli.plan.gather import gather
    from topoc.lowering.compress.layout import size

    (tmp_path / "three.topo").write_text(THREE)
    topology, findings = load(tmp_path / "three.topo")
    assert topology is not None, findings
    laid = plan(topology, read(topology.layers.config))
    for package, told in zip(laid.packages, gather(laid)["chunks"], strict=True):
        parts = [
            size(one)
            for weight in matrices(package.programs)
            for one in constants(package.recipes[weight.role], weight.type.shape).values()
        ]
        assert len(package.programs) == 3
        assert sum(parts) < told["stored_bytes"] <= 1.01 * sum(parts)
        assert told["stored_bytes"] < 0.26 * told["loaded_bytes"]


LARGER = {"hidden_size": 512, "intermediate_size": 2048, "head_dim": 64, "vocab_size": 512}


def test_file_of_three_functions_is_hardly_larger_than_its_compressed_weights(fast, tmp_path):
    """The file itself, of matrices that are large enough for headers and gains to be little."""
    tiny(tmp_path, **LARGER)
    text = topology_text(
        chunks="chunk one = L0\n  chunk two = L1 + norm + head(argmax)",
        functions="decode, prefill(tokens = 4), verify(tokens = 3)",
    )
    request = Request(
        topology=with_weights(resolved_text(text, tmp_path), int4()),
        architecture=read(tmp_path),
        reader=open_checkpoint("random:0"),
    )
    told = compile_bundle(request, tmp_path / "b").quantization.tensors
    for package, mine in (("one", "layers.0."), ("two", ("layers.1.", "embed"))):
        assert len(Package(tmp_path / "b" / f"{package}.mlpackage").functions) == 3
        parts = sum(one.bytes for one in told if one.weight.startswith(mine))
        (file,) = (tmp_path / "b" / f"{package}.mlpackage").rglob("weight.bin")
        assert parts < file.stat().st_size <= 1.01 * parts


UNFIT = {
    "q: prune(n = 4, m = 4)": "error[scheme.argument]: nothing is left where 4 of 4",
    "q: prune(n = 2, m = 5)": "quant.ragged-group]: the inputs do not divide by 5: `layers.0.q`",
    "q: int4(block = 7)": "error[quant.ragged-group]: the inputs do not divide into blocks of 7",
    "q: palettize(bits = 4, group = 7)": "error[quant.ragged-group]: the outputs do not divide",
    "q: prune(n = 2, m = 4) + palettize(bits = 4, group = 7)": "groups of 7: `layers.0.q`",
}


@pytest.mark.parametrize("rule", UNFIT)
def test_what_fits_no_weight_is_told_whatever_was_allowed(rule, small, tmp_path):
    """Before programs are made: coremltools would end in an exception of its own."""
    file = small / "unfit.topo"
    file.write_text(topology_text(chunks=TWO).replace("embed: none", f"{rule}"))
    allowed = [f"--allow={code}=seen" for code in ("quant.structured-sparsity", INDIVISIBLE)]
    asked = ["compile", str(file), "--weights", "random:0", "-o", str(tmp_path / "b"), *allowed]
    found = CliRunner().invoke(main, asked)

    assert found.exit_code in {1, 2}
    assert UNFIT[rule] in found.stderr
    assert not (tmp_path / "b").exists()
