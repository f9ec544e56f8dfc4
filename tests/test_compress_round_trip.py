"""What we say that constants mean is what coremltools, and a saved package, make of them."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from topoc.dsl.diagnostic import Place
from topoc.lowering.compress.compress import compress
from topoc.lowering.compress.dequantise import dense, rows
from topoc.lowering.compress.recipe import Linear, Palettize, Prune
from topoc.lowering.compress.source import Held
from topoc.lowering.interpret.constants import Constants
from topoc.lowering.interpret.package import Package

RAGGED = "ragged"  # 41 rows in groups of 16
CASES = {
    **{f"palettize{bits}": Palettize(bits, 16) for bits in (1, 2, 3, 4, 6, 8)},
    "per_tensor": Palettize(4),
    RAGGED: Palettize(3, 16),
    "byte_lut": Palettize(4, 16, "int8"),
    "int8_channel": Linear(8, "channel"),
    "int8_tensor": Linear(8, "tensor"),
    "int4": Linear(4, "block", 8),
    "prune": Prune(2, 4),
    "prune_palettize": Prune(2, 4, Palettize(4, 16)),
}
INTERPRETED = sorted(name for name in CASES if "prune" not in name)


def source(name):
    rng = np.random.default_rng(len(name))
    height = 41 if name == RAGGED else 48
    return Held(name, torch.from_numpy(rng.standard_t(3, (height, 40)).astype(np.float32)))


@pytest.fixture(scope="module")
def made():
    return {name: compress(source(name), how, pad_groups=True) for name, how in CASES.items()}


@pytest.fixture(scope="module")
def built(made, tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("constexpr")
    for name, one in made.items():
        arrays = {
            f"{key}:{part.dtype}": part.array().reshape(part.at_rank(4))
            for key, part in one.parts.items()
        }
        np.savez(folder / f"{name}.npz", **arrays)
    script = Path(__file__).with_name("constexpr_packages.py")
    subprocess.run([sys.executable, script, folder], check=True, capture_output=True)
    return folder


def same_bits(found, wanted):
    assert found.dtype == wanted.dtype == np.float16
    assert found.tobytes() == np.ascontiguousarray(wanted).tobytes()


@pytest.mark.parametrize("name", CASES)
def test_coremltools_decompresses_to_the_same_bits(name, made, built):
    theirs = np.load(built / f"{name}.npy")[: made[name].rows, :, 0, 0]
    same_bits(dense(made[name]), theirs)


@pytest.mark.parametrize("name", INTERPRETED)
def test_the_interpreter_reads_the_same_bits_from_a_package(name, made, built):
    package = Package(built / f"{name}.mlpackage")
    constants = Constants(package, package.functions["main"])
    read = constants.array("w", Place(name))[: made[name].rows, :, 0, 0]
    same_bits(dense(made[name]), read)


@pytest.mark.parametrize("name", CASES)
def test_a_package_holds_the_constants_as_they_are(name, made, built):
    stored = (built / f"{name}.mlpackage/Data/com.apple.CoreML/weights/weight.bin").read_bytes()
    for key, part in made[name].parts.items():
        if np.prod(part.shape) >= 10:  # fewer values stand in the program itself
            assert part.data.tobytes() in stored, key


@pytest.mark.parametrize("name", CASES)
def test_rows_are_those_of_the_whole(name, made):
    whole = dense(made[name])
    for start, stop in ((0, 1), (3, 20), (15, 33), (40, 41)):
        same_bits(rows(made[name], start, stop), whole[start:stop])


def test_a_compressed_weight_is_as_small_as_it_should_be(made):
    assert made["palettize4"].bytes == 48 * 40 // 2 + 3 * 16 * 2
    assert made["int4"].bytes == 48 * 40 // 2 + 48 * 5 * 2
    assert made["int8_channel"].bytes == 48 * 40 + 48 * 2
    assert made["prune_palettize"].bytes == 48 * 40 // 8 + 48 * 40 // 4 + 3 * 16 * 2
