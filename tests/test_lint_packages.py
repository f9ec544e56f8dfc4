"""Packages that coremltools built: each lints to exactly what is expected, by every rule."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from shipped import SHIPPING

from topoc.dsl.diagnostic import Severity, TopocError
from topoc.dsl.lint.engine import Options, Subjects, examine
from topoc.dsl.lint.rules import MIL, TOPOLOGY, rule
from topoc.dsl.lint.subject import Mil
from topoc.dsl.lint.weights import expanded_bytes
from topoc.dsl.model import Target
from topoc.lowering.cli.lint import of_package, of_programs
from topoc.lowering.coreml_proto import messages
from topoc.lowering.lint.files import read_package

pytestmark = pytest.mark.xdist_group("lint_packages")  # the corpus is built once, by one worker

# What a traced decoder has that squares in fp16, guards with 1e-6 and looks its tokens up.
TRACED = {
    ("error", "numeric.square-overflow"),
    ("error", "numeric.subnormal-eps"),
    ("warning", "op.embedding-gather"),
    ("note", "op.off-list"),
}
PACKAGES = {
    "chunk": set(),
    "cumsum": {("warning", "op.cumsum")},
    "decoder_dynamic": {*TRACED, ("error", "op.dynamic-shape")},
    "decoder_fp32": {
        ("warning", "op.fp32-island"),
        ("warning", "op.embedding-gather"),
        ("note", "op.off-list"),
    },
    "decoder_int8": {*TRACED, ("error", "quant.compressed-table")},
    "decoder_ios16": TRACED,
    "decoder_ios16_palettised": {*TRACED, ("error", "quant.compressed-table")},
    "decoder_ios18": TRACED,
    "decoder_palettised": {*TRACED, ("error", "quant.compressed-table")},
    "enumerated_rows": {("error", "op.dynamic-shape")},
    "gather_nd": {("error", "op.computed-gather")},
    "multi_function": set(),
    "six_axes": {("error", "op.rank-over-5")},
    "stateful": {("error", "state.update")},
    "topk": {
        ("error", "op.wide-topk"),
        ("warning", "op.linear-head"),
        ("note", "op.wide-axis"),
    },
    "while_loop": {("error", "op.while-loop"), ("note", "op.off-list")},
}


@pytest.fixture(scope="session")
def corpus(tmp_path_factory):
    folder = tmp_path_factory.mktemp("corpus")
    script = Path(__file__).with_name("lint_packages.py")
    scratch = tmp_path_factory.mktemp("scratch")  # coremltools leaves packages in it
    quiet = {"TMPDIR": str(scratch), "TQDM_DISABLE": "1", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, script, folder]
    subprocess.run(command, check=True, capture_output=True, env={**os.environ, **quiet})
    return folder


def reported(path, **options):
    return of_package(str(path), Options(**options))


@pytest.mark.parametrize("name", PACKAGES)
def test_each_package_lints_to_exactly_these(corpus, name):
    report = reported(corpus / f"{name}.mlpackage")
    found = {(one.severity.value, one.code) for one in report.findings}
    assert found == PACKAGES[name]
    assert report.ran == set(MIL)
    for one in report.findings:
        assert len(one.message) <= 100
        assert one.help


def test_the_corpus_is_what_is_expected(corpus):
    assert {one.stem for one in corpus.glob("*.mlpackage")} == set(PACKAGES)


def test_a_folder_is_all_its_packages_and_what_in_it_can_not_be_read(corpus):
    report = reported(corpus)
    assert {one.code for one in report.findings} == {
        "package.not-a-program",
        *(code for found in PACKAGES.values() for _, code in found),
    }
    (refused,) = (one for one in report.findings if one.code == "package.not-a-program")
    assert refused.message == "`network.mlmodel` is a neural network, not an ML program"


def test_how_a_shape_may_vary_is_told(corpus):
    told = {
        name: reported(corpus / f"{name}.mlpackage", select=("op.dynamic-shape",)).findings
        for name in ("enumerated_rows", "decoder_dynamic")
    }
    assert "input `x` takes several sizes" in told["enumerated_rows"][0].message
    assert "input `tokens` takes a size that may vary" in told["decoder_dynamic"][0].message


def test_a_neural_network_is_refused_by_name(corpus):
    with pytest.raises(TopocError, match="is a neural network, not an ML program"):
        reported(corpus / "network.mlmodel")


def test_what_is_compiled_or_no_model_at_all_is_refused(tmp_path):
    (tmp_path / "a.mlmodelc").mkdir()
    with pytest.raises(TopocError, match="is compiled, and what is linted is the package"):
        reported(tmp_path / "a.mlmodelc")
    (tmp_path / "a.mlmodel").write_bytes(b"")
    with pytest.raises(TopocError, match="holds no model"):
        reported(tmp_path / "a.mlmodel")
    (tmp_path / "a.mlmodel").write_bytes(b"\xff" * 64)
    with pytest.raises(TopocError, match="not a Core ML protobuf"):
        reported(tmp_path / "a.mlmodel")


@pytest.mark.parametrize(
    ("make", "name", "words"),
    [
        (None, "a.mlpackage", "`a.mlpackage` is not there"),
        (None, "a.mlmodel", "`a.mlmodel` is not there"),
        (None, "a.mlmodelc", "`a.mlmodelc` is not there"),
        (Path.touch, "a.mlpackage", "`a.mlpackage` is no folder, as a package is"),
        (Path.mkdir, "a.mlpackage", "`Manifest.json` is not there"),
        (Path.mkdir, "a.mlmodel", "`a.mlmodel` is no file"),
        (os.mkfifo, "a.mlmodel", "`a.mlmodel` is no file"),  # and is not waited for
    ],
)
def test_what_is_not_there_or_no_package_is_told_without_words_of_python(
    tmp_path, make, name, words
):
    if make is not None:
        make(tmp_path / name)
    with pytest.raises(TopocError) as raised:
        reported(tmp_path / name)
    (found,) = raised.value.findings
    assert (found.code, found.message) == ("bundle.unreadable-package", words)
    assert found.help


def test_no_weight_is_read(corpus, tmp_path):
    path = shutil.copytree(corpus / "decoder_palettised.mlpackage", tmp_path / "p.mlpackage")
    shutil.rmtree(path / "Data" / "com.apple.CoreML" / "weights")
    found = {(one.severity.value, one.code) for one in reported(path).findings}
    assert found == PACKAGES["decoder_palettised"]


def computed(corpus, name):
    (function,) = read_package(corpus / f"{name}.mlpackage").functions
    return {op.kind for op in function.compute}


def edited(corpus, name, target, edit):
    """A copy of a package, each of whose operations was edited."""
    path = shutil.copytree(corpus / f"{name}.mlpackage", target / "edited.mlpackage")
    file = next(path.rglob("*.mlmodel"))
    model = messages().Model()
    model.ParseFromString(file.read_bytes())
    for function in model.mlProgram.functions.values():
        for op in function.block_specializations[function.opset].operations:
            edit(op)
    file.write_bytes(model.SerializeToString())
    return path


@pytest.mark.parametrize("name", ["decoder_palettised", "cumsum", "stateful"])
def test_dialects_in_the_names_of_ops_change_nothing(corpus, tmp_path, name):
    def edit(op):
        op.type = f"ios18.{op.type}"

    path = edited(corpus, name, tmp_path, edit)
    assert {(one.severity.value, one.code) for one in reported(path).findings} == PACKAGES[name]


def test_parts_of_compressed_weights_are_found_wherever_an_opset_keeps_them(corpus):
    for name in ("decoder_ios16_palettised", "decoder_palettised"):
        (function,) = read_package(corpus / f"{name}.mlpackage").functions
        palettes = list(function.of("constexpr_lut_to_dense"))
        assert palettes
        for op in palettes:
            literal = function.literal(op.operand("indices"))
            assert literal.stored is not None
            assert function.type_of(op.operand("lut")).floating


def test_weights_that_functions_share_count_once(corpus):
    one, both = (
        expanded_bytes(read_package(corpus / f"{name}.mlpackage"))
        for name in ("chunk", "multi_function")
    )
    assert one == both
    assert one >= 2 * 64 * 64
    palettised = expanded_bytes(read_package(corpus / "decoder_palettised.mlpackage"))
    plain = expanded_bytes(read_package(corpus / "decoder_ios18.mlpackage"))
    assert abs(palettised - plain) < plain / 100  # as fp16, whatever is stored


@pytest.mark.parametrize("name", ["decoder_palettised", "decoder_int8"])
def test_compressed_constants_are_no_compute(corpus, name):
    (function,) = read_package(corpus / f"{name}.mlpackage").functions
    assert any(op.kind.startswith("constexpr_") for op in function.ops)
    assert computed(corpus, name) == computed(corpus, "decoder_ios18")


def test_both_functions_of_a_package_are_looked_at(corpus):
    package = read_package(corpus / "multi_function.mlpackage")
    assert [one.name for one in package.functions] == ["decode", "prefill"]
    assert [[op.kind for op in one.compute] for one in package.functions] == [
        ["linear", "silu"]
    ] * 2


def test_ops_in_blocks_are_looked_at(corpus):
    (function,) = read_package(corpus / "while_loop.mlpackage").functions
    assert {"while_loop", "greater", "squeeze", "mul", "sub"} == {o.kind for o in function.compute}
    assert len(function.body) < len(function.ops)


def test_rules_of_placement_are_silent_for_the_gpu(corpus):
    report = reported(corpus / "while_loop.mlpackage", target=Target(unit="gpu"))
    assert report.findings == ()


def topology_of(name):
    from topoc.dsl.load import load

    topology, _ = load(name)
    return topology


def test_the_shipping_topologies_are_known():
    assert {"e4b_threeway", "stateful3", "stateless4", "swa4", "swa4_8k", "threeway"} <= {*SHIPPING}
    assert {topology_of(name).status for name in SHIPPING} == {"shipping"}


@pytest.mark.parametrize(
    "name", [*SHIPPING, "gemma3_270m", "gemma3_270m_1chunk", "gemma3_270m_6bit"]
)
def test_what_we_ship_gets_notes_at_most_and_each_at_its_line(name):
    report = of_programs(topology_of(name), Options())
    assert report.ran >= {*TOPOLOGY, *MIL}
    assert report.findings
    for one in report.findings:
        assert one.severity is Severity.NOTE, (one.code, one.message)
        assert one.at.at.source.name.endswith(".topo")
    codes = [one.code for one in report.findings]
    assert codes.count("op.argmax-tail") == 1  # said of the text, and not of its programs again


def test_findings_of_programs_point_at_the_part_that_asks_for_them():
    report = of_programs(topology_of("gemma3_270m"), Options(select=("numeric.subnormal-eps",)))
    assert [one.at.at.text for one in report.findings] == ["L0-5", "L6-11", "L12-17"]
    assert report.findings[0].related[0].at.part == "decode/l0_input_normed_normal"


@pytest.mark.parametrize("code", MIL)
def test_every_rule_can_be_run_over_every_package(corpus, code):
    for name, expected in PACKAGES.items():
        subject = Mil(read_package(corpus / f"{name}.mlpackage"))
        found = {one.diagnostic.code for one in rule(code)().on_mil(subject)}
        assert found <= {code}
        assert bool(found) is (code in {one for _, one in expected})
    assert examine(Subjects(), Options(select=(code,))).ran == frozenset()
