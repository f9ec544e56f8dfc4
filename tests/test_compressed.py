"""Compressed bundles: what they hold is what the recipes say, made once, the same every time."""

import os
import random
import shutil
import signal
from functools import cache
from itertools import groupby
from math import prod
from multiprocessing import get_context
from time import sleep
from zlib import crc32

import numpy as np
import pytest
from attrs import evolve
from compiled import resolved as resolved_text
from compiled import topology_text
from tiny_checkpoint import tiny
from tiny_gemma4 import tiny_gemma4
from twins import TOKENS, TWINS, W, int4, requested, resolved, with_weights

from topoc.dsl.diagnostic import TopocError
from topoc.dsl.load import load
from topoc.dsl.model import Scheme
from topoc.lowering import compressed
from topoc.lowering.architecture import read
from topoc.lowering.bundle.bundle import Bundle
from topoc.lowering.bundle.digest import tree_digest
from topoc.lowering.bundle.reader import open_bundle
from topoc.lowering.checkpoint.bind import bind
from topoc.lowering.checkpoint.digest import digest
from topoc.lowering.checkpoint.open import open_checkpoint
from topoc.lowering.compiler import Request, compile_bundle
from topoc.lowering.compress.cache import Cache
from topoc.lowering.compress.dequantise import dense
from topoc.lowering.compress.layout import WIDTHS, constants, height
from topoc.lowering.compress.packing import pack
from topoc.lowering.compress.parts import Compressed, Part, part
from topoc.lowering.compressed import Compressor
from topoc.lowering.emit.mil import emit
from topoc.lowering.engine.driver import Engine
from topoc.lowering.engine.predict import InterpreterPredictor
from topoc.lowering.interpret.constants import Constants
from topoc.lowering.interpret.package import Package
from topoc.lowering.ir import DType
from topoc.lowering.manifest import Allowed, Lint
from topoc.lowering.package import ALIGNMENT, BlobWriter, prepare, write_description
from topoc.lowering.plan import plan
from topoc.lowering.recipes import matrices
from topoc.lowering.sink import PackageSink
from topoc.lowering.stored import Rounded

EVEN = {
    "vocabulary": 512,
    "hidden_size": 64,
    "intermediate_size": 64,
    "head_dim": 32,
    "global_head_dim": 64,
    "hidden_size_per_layer_input": 32,
}
"""Every matrix divides by 32, whatever its axis, and so do sixteen slices of the head."""
TWO = "chunk one = L0-1\n  chunk two = L2-3 + norm + head(argmax)"
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
    monkeypatch.setattr(compressed, "compress", drawn)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Where the checkpoints and the shared cache are."""
    return tmp_path_factory.mktemp("compressed")


@pytest.fixture(scope="module")
def checkpoint_of(folder):
    @cache
    def make(dimensions):
        path = folder / f"m{len(list(folder.iterdir()))}"
        tiny_gemma4(path, seed=1, **dict(dimensions))
        return path

    return make


def even(checkpoint_of, twin):
    return checkpoint_of(tuple((dict(twin.dimensions) | EVEN).items()))


def asked(twin, checkpoint, folder, schemes=None, **options):
    """The request of a quantised twin, with a cache that all share."""
    functions = options.pop("functions", None)
    schemes = int4() if schemes is None else schemes
    request = requested(twin, checkpoint, "fp16", schemes=schemes, functions=functions)
    return evolve(request, **({"cache": Cache(folder / "cache")} | options))


class Emitted:
    """The packages of a plan, compressed and not, without all that a bundle has beside them."""

    def __init__(self, topology, checkpoint, folder):
        self.architecture = read(checkpoint)
        self.weights = bind(open_checkpoint(str(checkpoint)), self.architecture)
        self.plan = plan(topology, self.architecture)
        self.folder = folder
        recipes = {role: how for one in self.plan.packages for role, how in one.recipes.items()}
        self.compressor = Compressor(
            self.weights, recipes, digest(self.weights.reader), Cache(folder / "cache"), True
        )

    def write(self, package, path, recipes, sink=PackageSink):
        with BlobWriter(prepare(path)) as blob:
            rounded = Rounded(self.weights, lambda _: None)
            made = sink(rounded, blob, self.compressor.get)
            model = emit(
                package.programs, sink=made, metadata={}, dtype=DType.FP16, recipes=recipes
            )
        write_description(path, model)
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


@pytest.mark.parametrize("name", TWINS)
def test_constants_of_every_twin_are_what_the_recipe_makes_of_its_weights(
    name, checkpoint_of, fast, tmp_path
):
    twin = TWINS[name]
    checkpoint = even(checkpoint_of, twin)
    topology = resolved(twin, checkpoint, functions={"decode"}, schemes=int4())
    emitted = Emitted(topology, checkpoint, tmp_path)
    for package in emitted.plan.packages:
        path = emitted.write(package, tmp_path / package.path, package.recipes)
        check_constants(emitted, package, path)


@pytest.mark.parametrize("name", SCHEMES)
def test_constants_of_every_scheme(name, checkpoint_of, fast, tmp_path):
    twin = TWINS["merged2"]
    checkpoint = even(checkpoint_of, twin)
    topology = resolved(twin, checkpoint, schemes=SCHEMES[name])
    emitted = Emitted(topology, checkpoint, tmp_path)
    package = emitted.plan.packages[-1]
    check_constants(
        emitted, package, emitted.write(package, tmp_path / package.path, package.recipes)
    )


class Whole(PackageSink):
    """Writes what compressed weights decompress to, as if they were the checkpoint's."""

    def _write(self, placed, repeats):
        if placed.layout != "conv":
            return super()._write(placed, repeats)
        values = dense(self.compressed(placed.weight))
        offset = self.blob.begin("float16", values.nbytes)
        self.blob.file.write(values.data)
        return offset


def rows_of(bundle):
    """Logits of decode calls, a verify and a decode behind it, rounded as fp16 hardware would."""
    engine = Engine(bundle, InterpreterPredictor(bundle, True), want_logits=True)
    rows = [engine.feed([token], only="decode").logits for token in TOKENS[: W + 2]]
    roles = {one.role: one for one in bundle.manifest.functions}
    if "verify" in roles:
        tokens = roles["verify"].tokens
        call = engine.verify(TOKENS[W + 2 :][:tokens])
        rows += [call.result(row).logits for row in range(tokens)]
        engine.accept(call, tokens)
    return np.stack(rows)


@pytest.mark.parametrize(
    ("name", "changed"),
    [("swa4", EVEN), ("head_split16", EVEN), ("merged2", {"vocabulary": 131})],
)
def test_bundle_computes_what_dequantised_weights_do(name, changed, checkpoint_of, fast, tmp_path):
    """Bit by bit, whether or not groups are padded."""
    twin = TWINS[name]
    checkpoint = checkpoint_of(tuple((dict(twin.dimensions) | changed).items()))
    request = asked(twin, checkpoint, tmp_path, pad_groups=changed is not EVEN)
    compile_bundle(request, tmp_path / "b")
    bundle = open_bundle(tmp_path / "b")
    whole = Bundle(tmp_path / "whole", bundle.manifest)
    shutil.copytree(bundle.path, whole.path)
    emitted = Emitted(request.topology, checkpoint, tmp_path)
    emitted.plan = plan(
        request.topology, emitted.architecture, scales=scales_of(request, emitted.weights)
    )
    for package in emitted.plan.packages:
        shutil.rmtree(whole.path / package.path)
        emitted.write(package, whole.path / package.path, {}, Whole)
        smaller = (bundle.path / package.path, whole.path / package.path)
        assert tree_digest(smaller[0]) != tree_digest(smaller[1])

    np.testing.assert_array_equal(rows_of(bundle), rows_of(whole), strict=True)


def scales_of(request, weights):
    from topoc.lowering.calibration import calibration_tokens
    from topoc.lowering.interpret.ranges import measure
    from topoc.lowering.rescale import scales_for

    tokens = calibration_tokens(request.architecture, None)
    ranges = measure(request.architecture, weights, tokens)
    return scales_for(ranges, request.architecture.norms.eps)


def test_ragged_groups_are_an_error_that_names_tensors(checkpoint_of, folder, tmp_path):
    twin = TWINS["merged2"]
    checkpoint = checkpoint_of((*twin.dimensions, ("vocabulary", 131)))

    request = asked(twin, checkpoint, folder)
    with pytest.raises(TopocError) as raised:
        compile_bundle(request, tmp_path / "b")
    found = raised.value.findings
    assert {one.code for one in found} == {"quant.indivisible-group"}
    assert any("k_proj" in one.message for one in found)
    lines = {one.span for one in request.topology.recipes}
    assert {one.at.at for one in found} <= lines  # as its text has it, not the checkpoint's file
    known = Lint(allowed=(Allowed(code="quant.indivisible-group", reason="tried"),))
    with pytest.raises(TopocError, match=r"quant\.ragged-group.*k_proj"):
        compile_bundle(evolve(request, lint=known), tmp_path / "b")
    assert not (tmp_path / "b").exists()


@pytest.fixture(scope="module")
def small(folder):
    """A config of few and small matrices, for compiles that are repeated."""
    (folder / "small").mkdir()
    kinds = ["sliding_attention", "full_attention"] * 2
    tiny(folder / "small", vocab_size=160, num_hidden_layers=4, layer_types=kinds)
    return folder / "small"


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
    true = compressed.compress

    def counted(source, *arguments, **options):
        made.append(source.name)
        return true(source, *arguments, **options)

    class Context:
        def __enter__(self):
            patch.setattr(compressed, "compress", counted)
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


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_killed_compiles_leave_what_they_made(undisturbed, small, tmp_path):
    """Killed at ten moments, most while weights are compressed; then it is let go on."""
    target, manifest, _ = undisturbed
    kept, all_ = Cache(tmp_path / "cache"), len(manifest.quantization.tensors)
    request = request_of(small, kept)
    chosen = random.Random(6)
    for most in sorted(chosen.randrange(all_ + 1) for _ in range(10)):
        child = get_context("fork").Process(
            target=compile_bundle, args=(request, tmp_path / "b"), daemon=True
        )
        child.start()
        while len(list(kept.root.glob("*.weight"))) < most and child.is_alive():
            sleep(0.001)
        sleep(chosen.random() * 0.02)
        if child.is_alive():
            os.kill(child.pid, signal.SIGKILL)
        child.join()
        assert len(list(kept.root.glob("*.weight"))) >= most
    there = len(kept.entries())
    with counting() as made:
        compile_bundle(request, tmp_path / "b")

    assert len(made) == all_ - there
    assert tree_digest(tmp_path / "b") == tree_digest(target)


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
