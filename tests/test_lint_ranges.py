"""Ranges that the interpreter measures in bundles: what is told, and where it points."""

import json
import shutil
from functools import cache

import pytest
from click.testing import CliRunner
from compiled import compile_text, topology_text
from safetensors.torch import load_file, save_file
from tiny_gemma import tiny_gemma3

from topoc.dsl.cli import main
from topoc.dsl.diagnostic import Severity
from topoc.dsl.lint.engine import Options
from topoc.lowering.cli.lint import of_ranges, packages_of_bundle

LOUD, NEAR, QUIET = 30_000.0, 15_000.0, -1.0 + 1e-6
GAIN = "model.layers.{}.post_{}_layernorm.weight"


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    folder = tmp_path_factory.mktemp("checkpoint")
    tiny_gemma3(folder)
    return folder


def with_gain(checkpoint, folder, layer, part, gain):
    """The checkpoint, with another gain of one norm behind a branch; gains are stored less one."""
    shutil.copytree(checkpoint, folder)
    weights = load_file(folder / "model.safetensors")
    weights[GAIN.format(layer, part)].fill_(gain)
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
    return folder


@pytest.fixture(scope="module")
def built(checkpoint, tmp_path_factory):
    """The path of a bundle with another gain, compiled once."""

    @cache
    def build(layer, part, gain, rescale=True):
        folder = tmp_path_factory.mktemp("built")
        weights = with_gain(checkpoint, folder / "weights", layer, part, gain)
        return str(compile_text(topology_text(), weights, folder / "b", rescale=rescale).path)

    return build


def told(path, ids="2,5,7"):
    return [(one.severity, one.code) for one in of_ranges(path, None, ids)]


def test_what_leaves_fp16_is_told_at_the_part_that_asks_for_its_layer(built):
    path = built(3, "attention", LOUD, False)
    findings = of_ranges(path, None, "2,5,7")
    assert {one.code for one in findings} == {"range.overflow"}
    (first, *_) = findings
    assert first.severity is Severity.ERROR
    assert first.message.startswith("`l3_")
    assert first.at.words == "layer 3"
    assert first.at.at.text == "L2-3"
    assert first.related[0].at.file.endswith("two.mlpackage")
    measured = packages_of_bundle(path, Options())
    assert "numeric.residual-overflow" in {one.code for one in measured.findings}


def test_the_exact_rescale_leaves_nothing_to_tell(built):
    path = built(3, "attention", LOUD)
    assert told(path) == []
    assert packages_of_bundle(path, Options()).findings == ()


def test_what_comes_near_the_end_is_a_warning(built):
    path = built(0, "feedforward", NEAR, False)
    assert set(told(path)) == {(Severity.WARNING, "range.near-overflow")}


def test_what_is_subnormal_throughout_is_a_note(built):
    path = built(1, "feedforward", QUIET)
    ((severity, code),) = told(path)
    assert (severity, code) == (Severity.NOTE, "range.subnormal")


def test_a_prompt_without_bos_is_warned_about(checkpoint, tmp_path):
    path = str(compile_text(topology_text(), checkpoint, tmp_path / "bundle").path)
    assert told(path, "5,7") == [(Severity.WARNING, "range.no-bos")]
    assert told(path) == []
    assert of_ranges(path, None, None) == ()  # the default begins with BOS


def test_the_command_tells_ranges_of_bundles(built):
    path = built(3, "attention", LOUD, False)
    options = ["--ranges", "--prompt-ids", "2,5", "--format", "json", "--ignore", "numeric"]
    done = CliRunner().invoke(main, ["lint", path, *options])
    codes = {one["code"] for one in json.loads(done.stdout)["findings"]}
    assert done.exit_code == 1
    assert codes == {"range.overflow"}
    assert CliRunner().invoke(main, ["lint", path, "--ignore", "numeric"]).exit_code == 0
