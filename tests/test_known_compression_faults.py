"""Faults of compression that were reported of other converters, and that ours does not have.

Each section names the reports. All of them hold small models whole: a compile from a text, and
what its packages decompress to.
"""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from compiled import compile_text, topology_text
from safetensors.numpy import load_file, save_file
from tiny_checkpoint import by_name, tiny
from topo_text import codes, gemma3, resolved

from topoc.lowering.interpret.constants import Constants
from topoc.lowering.interpret.package import Package

BOTH = "decode, prefill(tokens = 4)"
CHUNKS = "chunk one = L0\n  chunk two = L1 + norm + head(argmax)"
NARROW = {"num_key_value_heads": 1, "head_dim": 16, "vocab_size": 96}
"""k and v are 1,024 numbers each, of 64 inputs and 16 outputs."""
FOUR = "palettize(bits = 4, group = 16)"


def rules(text):
    return topology_text(f"quantize {{\n    embed: none\n    {text}\n  }}", chunks=CHUNKS).replace(
        "  quantize { embed: none }\n", ""
    )


def checkpoint_in(folder, change=lambda _: None, **dimensions):
    """A tiny Gemma 3 of two layers, whose tensors may be changed before they are saved."""
    folder.mkdir()
    tensors = {name: one.numpy() for name, one in by_name(tiny(folder, **dimensions)).items()}
    change(tensors)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


@pytest.fixture(scope="module")
def narrow(tmp_path_factory):
    return checkpoint_in(tmp_path_factory.mktemp("faults") / "narrow", **NARROW)


def with_both(text):
    return text.replace("functions decode", f"functions {BOTH}")


@pytest.fixture(scope="module")
def four(narrow):
    """Two packages of two functions each, at four bits."""
    text = with_both(rules(f"weights: {FOUR}"))
    return compile_text(text, narrow, narrow.parent / "four")


def constants_of(bundle, name):
    """Every constant operand of every op, by function, result and parameter."""
    package = Package(bundle.path / name)
    for function in package.functions.values():
        values = Constants(package, function)
        for op in function.ops:
            for parameter, bound in op.inputs.items():
                for at, one in enumerate(bound):
                    if op.outputs and not op.type.startswith("const") and values.holds(one):
                        place = function.name, op.outputs[0].name, parameter, at
                        yield place, op.type, values.array(one, None)


def weights_of(bundle):
    """What convolutions multiply with, by package, function and result."""
    return {
        (path.name, *place[:2]): value[:, :, 0, 0]
        for path in sorted(bundle.path.glob("*.mlpackage"))
        for place, kind, value in constants_of(bundle, path.name)
        if kind == "conv" and place[2] == "weight"
    }


# --- a threshold that hides small tensors ---------------------------------------------------
#
# coremltools compresses no constant of fewer than 2,048 numbers unless it is told to
# (`weight_threshold` of its OpPalettizerConfig): a tiny model then tests nothing.


def test_small_matrices_are_compressed_and_all_are_told(four):
    told = {one.weight: one for one in four.manifest.quantization.tensors}
    ops = [op for p in four.path.glob("*.mlpackage") for op in Package(p).functions["decode"].ops]

    assert sum(op.type == "conv" for op in ops) == len(told) == 2 * 7 + 1
    assert sum(op.type == "constexpr_lut_to_dense" for op in ops) == len(told)
    assert told["layers.0.k"].bytes == 16 * 64 // 2 + 16 * 2


# --- zeros ----------------------------------------------------------------------------------
#
# apple/coremltools#2851, #2853: a row of zeros has the scale 0, and NaN is cast to an integer.


@pytest.mark.parametrize(
    "how", [FOUR, "int8(per = channel)", "int8(per = tensor)", "int4(block = 16)"]
)
def test_zeros_and_constant_matrices_come_back_exactly(how, tmp_path):
    """A warning would be an error here."""

    def change(tensors):
        tensors["model.layers.0.self_attn.q_proj.weight"][:16] = 0  # a group of rows
        tensors["model.layers.0.self_attn.v_proj.weight"][:] = 0
        tensors["model.layers.0.mlp.up_proj.weight"][:] = -0.0371

    checkpoint = checkpoint_in(tmp_path / "c", change, **NARROW)
    bundle = compile_text(rules(f"weights: {how}\n    head: none"), checkpoint, tmp_path / "b")
    before = load_file(checkpoint / "model.safetensors")
    found = {
        name.removeprefix("l0_"): one
        for (package, _, name), one in weights_of(bundle).items()
        if package == "one.mlpackage"
    }

    assert all(np.isfinite(one).all() for one in found.values())
    assert not found["q"][:16].any()
    assert found["q"][16:].any(1).all()
    assert not found["v"].any()
    up = before["model.layers.0.mlp.up_proj.weight"].astype(np.float16)
    assert np.array_equal(found["up"], up)


# --- constants that are no weights ----------------------------------------------------------
#
# apple/ml-stable-diffusion#246, #303, #316: one setting for all constants palettizes masks,
# tables of angles and gains too; with -inf in a mask, k-means ends in an error.


def test_only_matrices_change(tmp_path):
    """Gains are of more than 2,048 numbers here, the threshold of others."""
    wide = {"hidden_size": 2080, "intermediate_size": 32, "vocab_size": 96, "head_dim": 16}
    checkpoint = checkpoint_in(tmp_path / "c", **wide)
    whole = compile_text(rules("weights: none"), checkpoint, tmp_path / "whole")
    bundle = compile_text(rules(f"weights: {FOUR}"), checkpoint, tmp_path / "b")
    changed, same = set(), set()
    for path in whole.path.glob("*.mlpackage"):
        pairs = zip(constants_of(whole, path.name), constants_of(bundle, path.name), strict=True)
        for (place, kind, one), (other_place, _, other) in pairs:
            assert place == other_place
            equal = one.dtype == other.dtype and np.array_equal(one, other)
            (same if equal else changed).add((kind, place[2], one.size))

    assert {(kind, parameter) for kind, parameter, _ in changed} == {("conv", "weight")}
    assert not {one for one in same if one[:2] == ("conv", "weight")}
    assert ("layer_norm", "gamma", 2 * 2080) in same
    for name in ("rope_full.npy", "rope_sliding.npy", "embed.fp16.bin"):
        assert (whole.path / name).read_bytes() == (bundle.path / name).read_bytes()


# --- what others make of the package --------------------------------------------------------
#
# apple/coremltools#2716: packages of one version of the tools computed something else.


@pytest.fixture(scope="module")
def mixed(narrow):
    """A scheme of each kind."""
    text = rules(
        f"weights: {FOUR}\n    q: palettize(bits = 3, group = 16)\n    k: int8(per = channel)\n"
        "    up: int4(block = 16)\n    o: palettize(bits = 4, group = 16, lut = int8)\n"
        "    gate: palettize(bits = 6, group = 16)\n    down: int8(per = tensor)\n"
        "    L1 down: none\n    L1 q: palettize(bits = 2, group = 64)"
    )
    return compile_text(with_both(text), narrow, narrow.parent / "mixed")


def test_coremltools_reads_the_numbers_that_we_do(mixed):
    script, out = Path(__file__).with_name("decompressed_packages.py"), mixed.path.parent / "o.npz"
    packages = sorted(mixed.path.glob("*.mlpackage"))
    subprocess.run([sys.executable, script, out, *packages], check=True, capture_output=True)
    theirs, ours = np.load(out), weights_of(mixed)

    assert len(ours) == len(theirs.files) == 2 * (2 * 7 + 1)
    for place, one in ours.items():
        other = theirs["/".join(place)][:, :, 0, 0]
        assert one.dtype == other.dtype == np.float16
        assert np.array_equal(one, other), place
    assert "coremltools" in mixed.manifest.toolchain


# --- fewer numbers than entries -------------------------------------------------------------
#
# apple/coreai-optimization#93: an exception of k-means was swallowed.


def test_a_table_of_more_entries_than_numbers_loses_nothing(tmp_path):
    """128 numbers a group, 256 entries; groups of vectors are nothing that the language has."""
    checkpoint = checkpoint_in(tmp_path / "c", **NARROW)
    how = "palettize(bits = 8, group = 2)"
    bundle = compile_text(rules(f"weights: none\n    k: {how}"), checkpoint, tmp_path / "b")
    (found, *_) = (one for place, one in weights_of(bundle).items() if place[2] == "l0_k")
    true = load_file(checkpoint / "model.safetensors")["model.layers.0.self_attn.k_proj.weight"]

    assert np.array_equal(found, true.astype(np.float16))
    (told, _) = bundle.manifest.quantization.tensors
    assert told.sqnr is None or told.sqnr > 100


# --- which part takes how many bits ---------------------------------------------------------
#
# pytorch/executorch#15936: an embedding and the matrices of an MLP do not take what others do.
# A prefill that asks for other bits than the decode function would not share its weights.


def test_each_part_has_the_bits_that_its_rule_says(mixed):
    told = {one.weight: one.scheme for one in mixed.manifest.quantization.tensors}

    assert told["layers.0.q"] == "palettize(bits = 3, group = 16)"
    assert told["layers.1.q"] == "palettize(bits = 2, group = 64)"
    assert told["layers.0.v"] == told["layers.1.v"] == FOUR
    assert told["layers.0.o"] == "palettize(bits = 4, group = 16, lut = int8)"
    assert told["layers.1.gate"] == "palettize(bits = 6, group = 16)"
    assert told["layers.0.down"] == "int8(per = tensor)"
    assert "layers.1.down" not in told


UNSAYABLE = {
    "prefill weights: palettize(bits = 6)": "selector.unknown",
    "weights: palettize(bits = 4, function = prefill_4)": "scheme.argument",
    "weights: palettize(bits = 4, cluster_dim = 4)": "scheme.argument",
}


@pytest.mark.parametrize("rule", UNSAYABLE)
def test_no_function_can_ask_for_bits_of_its_own(rule):
    topology, found = resolved(gemma3(f"quantize {{\n    {rule}\n  }}"))

    assert topology is None
    assert UNSAYABLE[rule] in codes(found)


def test_functions_of_a_package_read_the_same_numbers(mixed):
    ours = weights_of(mixed)

    for (package, function, name), one in ours.items():
        if function == "decode":
            assert np.array_equal(one, ours[package, "prefill_4", name])


def test_a_function_with_a_package_of_its_own_gets_the_same_bits(narrow, four):
    text = rules(f"weights: {FOUR}").replace(
        "functions decode", "functions decode, prefill(tokens = 4, package = separate)"
    )
    apart = compile_text(text, narrow, narrow.parent / "apart")
    found, wanted = weights_of(apart), weights_of(four)

    assert len(list(apart.path.glob("*.mlpackage"))) == 4
    assert len(found) == len(wanted)
    numbers = [sorted(one.tobytes() for one in each.values()) for each in (found, wanted)]
    assert numbers[0] == numbers[1]


# --- several functions, several chunks ------------------------------------------------------
#
# apple/coremltools#2351: memory grew with every function of a package.
# Anemll/Anemll e4504d2: the pool of workers was gone at the second chunk; how many there are
# makes no difference in test_compressed.py.


def test_a_second_function_adds_nothing_to_the_weights(narrow, four, tmp_path):
    alone = compile_text(rules(f"weights: {FOUR}"), narrow, tmp_path / "b")
    for path in sorted(four.path.glob("*.mlpackage")):
        one, two = (
            next((each.path / path.name).rglob("weight.bin")).stat().st_size
            for each in (alone, four)
        )
        assert one <= two <= 1.01 * one + 4096
