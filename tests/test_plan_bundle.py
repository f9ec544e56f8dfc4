"""`topoc plan BUNDLE`: what compression cost, the worst first."""

import json

import pytest
from attrs import evolve
from click.testing import CliRunner
from compiled import compile_text
from jsonschema import Draft202012Validator
from test_ladder import TEXT, text_of
from tiny_gemma import tiny_gemma3
from tiny_tokenizer import with_tokenizer

from topoc.dsl.cli import main
from topoc.dsl.load import load
from topoc.lowering.cli.plan import _report as report_of
from topoc.lowering.cli.plan import text
from topoc.lowering.cli.plan.damage import compressed, layers
from topoc.lowering.cli.schema import as_text
from topoc.lowering.manifest import Quantization, Tensor

RULES = """weights: palettize(bits = 4, group = 8)
    L1 up: palettize(bits = 2, group = 8)
    head: none"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    found = tmp_path_factory.mktemp("plan")
    tiny_gemma3(found / "c")
    with_tokenizer(found / "c")
    compile_text(text_of(RULES), found / "c", found / "plain")
    compile_text(text_of(RULES), found / "c", found / "calibrated", calibrate=TEXT)
    return found


def told(path, *options):
    found = CliRunner().invoke(main, ["plan", str(path), *options])
    assert found.exit_code == 0, found.output
    return found.stdout


def test_a_bundle_tells_what_it_lost_the_worst_first(folder):
    said = json.loads(told(folder / "plain", "--format", "json"))
    ratios = [one["sqnr"] for one in said["compressed"]]

    assert said["compressed"][0]["weight"] == "layers.1.up"
    assert len(ratios) == 28
    assert ratios == sorted(ratios)
    assert said["layers"][0]["layer"] == 1
    assert said["layers"][0]["sqnr"] == ratios[0]
    Draft202012Validator(json.loads(as_text("plan"))).validate(said)


def test_a_calibrated_bundle_is_sorted_by_the_error_of_outputs(folder):
    said = json.loads(told(folder / "calibrated", "--format", "json"))
    errors = [one["output_error"] for one in said["compressed"]]

    assert errors == sorted(errors, reverse=True)
    assert said["compressed"][0]["weight"] == "layers.1.up"
    first = [o["output_error"] for o in said["compressed"] if o["weight"].startswith("layers.1.")]
    assert said["layers"][0]["output_error"] == pytest.approx(sum(first) / 7)
    assert said["layers"][0]["layer"] == 1


def test_the_text_tells_the_same(folder):
    lines = told(folder / "calibrated").splitlines()
    start = lines.index("compressed weights, the worst first")

    assert lines[start + 1].split()[0] == "layers.1.up"
    assert "palettize(bits = 2, group = 8)" in lines[start + 1]
    assert "output error 0." in lines[start + 1]
    assert len([one for one in lines if one.startswith("  layers.")]) == 28
    assert lines[lines.index("compressed layers, the worst first") + 1].split()[0] == "L1"


def test_the_rest_is_the_plan_of_its_topology(folder):
    bundle = json.loads(told(folder / "plain", "--format", "json"))
    file = report_of(load(folder / "plain" / "topology.topo")[0], None)

    assert file["compressed"] == file["layers"] == []
    assert bundle | {"compressed": [], "layers": []} == file
    assert "compressed weights" not in text.as_text(file)


@pytest.mark.parametrize("options", [["-D", "C=64"], ["--model", "x"], ["--topology", "tiny"]])
def test_a_bundle_is_shown_as_it_is(folder, options):
    found = CliRunner().invoke(main, ["plan", str(folder / "plain"), *options])

    assert found.exit_code == 2
    assert "a bundle is shown as it is" in found.stderr


def test_a_bundle_that_is_damaged_is_refused(folder, tmp_path):
    import shutil

    shutil.copytree(folder / "plain", tmp_path / "b")
    (tmp_path / "b" / "manifest.json").write_text("{}")
    found = CliRunner().invoke(main, ["plan", str(tmp_path / "b")])

    assert found.exit_code == 2
    assert "bundle.schema" in found.stderr


TENSOR = Tensor(weight="a", role="q", layer=0, scheme="s", bytes=8, sqnr=20.0, output_error=None)


def test_what_lost_nothing_comes_last_and_what_is_outside_layers_counts():
    tensors = (
        evolve(TENSOR, weight="exact", sqnr=None),
        evolve(TENSOR, weight="head", layer=None, sqnr=9.0),
        TENSOR,
    )
    made = Quantization(bytes={}, tensors=tensors)

    assert [one["weight"] for one in compressed(made)] == ["head", "a", "exact"]
    assert [(one["layer"], one["sqnr"], one["bytes"]) for one in layers(made)] == [
        (None, 9.0, 8),
        (0, 20.0, 16),
    ]
    assert layers(None) == compressed(None) == []
