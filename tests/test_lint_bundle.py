"""`topoc lint` takes bundles too, and refuses by the same words what `topoc run` refuses."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from jsonschema import Draft202012Validator
from sarif_kit.validate import validation_errors

from topoc.dsl.cli import main
from topoc.lowering.bundle.digest import tree_digest
from topoc.lowering.coreml_proto import messages

ROOT = Path(__file__).parent.parent
EXAMPLE = ROOT / "examples" / "conformance" / "bundle"
MODEL = "Data/com.apple.CoreML/model.mlmodel"


@pytest.fixture
def path(tmp_path):
    return shutil.copytree(EXAMPLE, tmp_path / "b")


def topoc(*arguments):
    """Exit status, stdout and stderr; a traceback fails the test."""
    done = CliRunner().invoke(main, [str(one) for one in arguments])
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise done.exception
    return done.exit_code, done.stdout, done.stderr


def listed(*arguments):
    """Status and findings."""
    status, out, _ = topoc("lint", *arguments, "--format", "json")
    return status, json.loads(out)["findings"]


def edited(path, edit, *, package=None):
    """Change the manifest, and list the true hash of a package as whoever forges one would."""
    file = path / "manifest.json"
    raw = json.loads(file.read_text())
    edit(raw)
    for one in raw["files"]:
        if one["path"] == package:
            one["bytes"], one["sha256"] = tree_digest(path / package)
    file.write_text(json.dumps(raw))


def remodelled(path, edit, name="first.mlpackage"):
    """Change a package's model, and its hash in the manifest with it."""
    file = path / name / MODEL
    model = messages().Model()
    model.ParseFromString(file.read_bytes())
    edit(model)
    file.write_bytes(model.SerializeToString(deterministic=True))
    edited(path, lambda _: None, package=name)


def corrupted_weights(path):
    file = path / "first.mlpackage/Data/com.apple.CoreML/weights/weight.bin"
    whole = bytearray(file.read_bytes())
    whole[-1] ^= 1
    file.write_bytes(whole)


def corrupted_model(path):
    (path / "first.mlpackage" / MODEL).write_bytes(b"\xff" * 100)
    edited(path, lambda _: None, package="first.mlpackage")


def no_program(path):
    remodelled(path, lambda model: model.ClearField("mlProgram"))


def odd_package_index(path):
    index = path / "first.mlpackage/Manifest.json"
    raw = json.loads(index.read_text())
    for one in raw["itemInfoEntries"].values():
        one["path"] = "a\0b"
    index.write_text(json.dumps(raw))
    edited(path, lambda _: None, package="first.mlpackage")


def deep_package_index(path):
    (path / "first.mlpackage/Manifest.json").write_text("[" * 100_000)
    edited(path, lambda _: None, package="first.mlpackage")


def another_build(path):
    def edit(model):
        model.description.metadata.userDefined["topoc.build"] = "f" * 64

    remodelled(path, edit)


def no_build(path):
    remodelled(path, lambda model: model.description.metadata.ClearField("userDefined"))


def renamed_input(path):
    def edit(raw):
        raw["functions"][0]["steps"][0]["inputs"][0]["feature"] = "other"

    edited(path, edit)


def renamed_function(path):
    edited(path, lambda raw: raw["functions"][0]["steps"][0].update(function="other"))


def of_every_decode(raw, kind, change):
    for step in raw["functions"][0]["steps"]:
        for one in (*step["inputs"], *step["outputs"]):
            if (one.get("source") or one.get("sink"))["kind"] == kind:
                change(one)


def other_dtype(path):
    def change(one):
        one["dtype"] = "fp32"

    edited(path, lambda raw: of_every_decode(raw, "value", change))


def other_shape(path):
    """The manifest agrees with itself: it is the package that has another one."""

    def edit(raw):
        raw["model"]["context"] = 25
        for one in raw["buffers"]:
            one["shape"][2] = 25 if one["shape"][2] == 24 else one["shape"][2]
            for row in one["rows"]:
                row["slots"] = one["shape"][2]
        for function in raw["functions"]:
            for step in function["steps"]:
                for one in (*step["inputs"], *step["outputs"]):
                    source = one.get("source", {})
                    if source.get("slots") == 24:
                        source["slots"] = 25
                    grown = {24: 25, 27: 28}
                    one["shape"] = [grown.get(size, size) for size in one["shape"]]
        for rope in raw["ropes"].values():
            rope["positions"] = 25
            table = np.load(path / rope["path"])
            np.save(path / rope["path"], np.concatenate([table, table[:, -1:]], 1))
        for one in raw["files"]:
            one["bytes"], one["sha256"] = tree_digest(path / one["path"])

    edited(path, edit)


def one_output_less(path):
    def edit(model):
        for function in model.description.functions:
            del function.output[-1]
        for function in model.mlProgram.functions.values():
            del function.block_specializations[function.opset].outputs[-1]

    remodelled(path, edit)


def one_output_more(path):
    def edit(raw):
        steps = raw["functions"][1]["steps"]
        steps[1]["outputs"] = [o for o in steps[1]["outputs"] if o["sink"]["kind"] != "token"]

    edited(path, edit)


def no_such_probe(path):
    def change(one):
        one["sink"]["probe"] = "nowhere"

    edited(path, lambda raw: of_every_decode(raw, "token", change))


def path_that_leaves(path):
    edited(path, lambda raw: raw["tables"]["embed"].update(path="../embed.bin"))


def link_that_leaves(path):
    shutil.copytree(path / "second.mlpackage", path.parent / "second")
    shutil.rmtree(path / "second.mlpackage")
    (path / "second.mlpackage").symlink_to(path.parent / "second")


def linked_folder(path):
    data = path / "second.mlpackage" / "Data"
    data.rename(path.parent / "Data")
    data.symlink_to(path.parent / "Data")
    edited(path, lambda _: None, package="second.mlpackage")


def linked_folder_inside(path):
    data = path / "second.mlpackage" / "Data"
    shutil.rmtree(data)
    data.symlink_to(path / "first.mlpackage" / "Data")
    edited(path, lambda _: None, package="second.mlpackage")


def link_in_a_circle(path):
    (path / "embed.fp16.bin").unlink()
    (path / "embed.fp16.bin").symlink_to("embed.fp16.bin")


def pipe(path):
    (path / "rope_full.npy").unlink()
    os.mkfifo(path / "rope_full.npy")


def pipe_in_a_package(path):
    os.mkfifo(path / "first.mlpackage" / "Data" / "more")


def folder_for_a_table(path):
    (path / "rope_full.npy").unlink()
    (path / "rope_full.npy").mkdir()


def unknown_schema(path):
    edited(path, lambda raw: raw.update(schema="topoc.bundle/2"))


def foreign_manifest(path):
    (path / "manifest.json").write_text("[1]")


def not_text(path):
    (path / "manifest.json").write_bytes(b"\xff\xfe")


def missing_table(path):
    (path / "embed.fp16.bin").unlink()


def unknown_table(path):
    edited(path, lambda raw: raw["tables"].clear())


def short_table(path):
    (path / "embed.fp16.bin").write_bytes(b"short")


def odd_rope(path):
    whole = (path / "rope_full.npy").read_bytes()
    (path / "rope_full.npy").write_bytes(whole.replace(b"(2, ", b"((2 "))


def stranger(path):
    (path / "third.mlpackage").mkdir()


BROKEN = {
    corrupted_weights: "bundle.hash",
    corrupted_model: "bundle.unreadable-package",
    no_program: "bundle.unreadable-package",
    odd_package_index: "bundle.unreadable-package",
    deep_package_index: "bundle.unreadable-package",
    another_build: "bundle.mixed-builds",
    no_build: "bundle.mixed-builds",
    renamed_input: "bundle.feature",
    renamed_function: "bundle.feature",
    other_dtype: "bundle.feature",
    other_shape: "bundle.feature",
    one_output_less: "bundle.feature",
    one_output_more: "bundle.feature",
    no_such_probe: "bundle.feature",
    path_that_leaves: "bundle.path",
    link_that_leaves: "bundle.path",
    linked_folder: "bundle.path",
    linked_folder_inside: "bundle.path",
    link_in_a_circle: "bundle.path",
    pipe: "bundle.unreadable-file",
    pipe_in_a_package: "bundle.unreadable-file",
    folder_for_a_table: "bundle.unreadable-file",
    unknown_schema: "bundle.schema",
    foreign_manifest: "bundle.manifest",
    not_text: "bundle.manifest",
    missing_table: "bundle.missing-file",
    unknown_table: "bundle.unknown-name",
    short_table: "bundle.shapes-disagree",
    odd_rope: "bundle.shapes-disagree",
    stranger: "bundle.extra-file",
}


@pytest.mark.parametrize("harm", BROKEN, ids=lambda one: one.__name__)
def test_what_does_not_fit_together_is_refused_by_run_and_by_lint(path, harm):
    harm(path)
    status, findings = listed(path)
    assert status == 1
    assert BROKEN[harm] in {one["code"] for one in findings}
    assert all(one["help"] for one in findings)
    status, out, err = topoc("run", path, "--prompt-ids", "2,0")
    assert (status, out) == (2, "")
    for one in findings:
        assert f"{one['severity']}[{one['code']}]: {one['message']}" in err


@pytest.mark.parametrize("harm", [another_build, other_dtype, other_shape, one_output_less])
def test_only_what_was_meant_is_found(path, harm):
    """No hash gives a forger away here: it is the check itself that refuses."""
    harm(path)
    codes = {one["code"] for one in listed(path)[1]}
    allowed = {"bundle.hash"} if harm is other_shape else set()
    assert codes - allowed == {BROKEN[harm]}


def test_a_whole_bundle_has_no_findings(path):
    assert listed(path) == (0, [])
    status, out, err = topoc("lint", path)
    assert (status, err) == (0, "")
    assert out.startswith("1 file: no findings\n")


def test_all_is_told_at_once_and_beside_topologies(path, tmp_path):
    missing_table(path)
    corrupted_weights(path)
    another_build(path)
    stranger(path)
    (tmp_path / "wrong.topo").write_text("topology wrong {\n  contxt 3\n}\n")
    status, findings = listed(path, tmp_path / "wrong.topo")
    assert status == 1
    codes = [one["code"] for one in findings]
    wanted = ["bundle.missing-file", "bundle.extra-file", "bundle.mixed-builds"]
    assert codes[:3] == wanted
    assert any(one.startswith("syntax.") for one in codes)


def test_every_format_tells_a_bundle(path, monkeypatch):
    monkeypatch.chdir(path.parent)
    another_build(path)
    status, text, _ = topoc("lint", "b")
    assert status == 1
    assert "error[bundle.mixed-builds]: `first.mlpackage` is of build ffffffffffff, and" in text
    findings = json.loads(topoc("lint", "b", "--format", "json")[1])
    shape = json.loads((ROOT / "dsl" / "schema" / "findings.json").read_text())
    Draft202012Validator(shape).validate(findings)
    sarif = json.loads(topoc("lint", "b", "--format", "sarif")[1])
    assert validation_errors(sarif) == []
    (result,) = sarif["runs"][0]["results"]
    location = result["locations"][0]["physicalLocation"]
    assert location["artifactLocation"]["uri"] == "b/first.mlpackage"
    github = topoc("lint", "b", "--format", "github")[1]
    assert github.startswith("::error file=b/first.mlpackage,title=bundle.mixed-builds::")


def test_the_topology_in_a_bundle_is_told_in_notes(path):
    text = (path / "topology.topo").read_text()
    (path / "topology.topo").write_text(text.replace("context 24", "context 24\n  kv { L9: own }"))
    edited(path, lambda _: None, package="topology.topo")
    status, findings = listed(path)
    assert status == 0
    assert "layer.out-of-range" in {one["code"] for one in findings}
    assert {one["severity"] for one in findings} == {"note"}
    assert findings[0]["at"]["file"].endswith("b/topology.topo")
    assert topoc("lint", path, "--fail-on", "note")[0] == 1
    (path / "topology.topo").unlink()
    assert [one["code"] for one in listed(path)[1]] == ["bundle.missing-file"]


def test_options_of_topologies_do_not_reach_into_bundles(path):
    assert topoc("lint", path, "-D", "C=1")[0] == 0


def test_a_folder_without_a_manifest_is_no_bundle(tmp_path):
    status, findings = listed(tmp_path)
    assert status == 2
    assert "is a folder, and a topology is a file" in findings[0]["message"]


def test_a_topology_is_linted_without_what_bundles_need():
    code = (
        "import sys; from topoc.dsl.cli import main\n"
        "try: main(['lint', 'gemma3_270m.topo'])\n"
        "except SystemExit as end: assert end.code == 0\n"
        "print(*(one for one in sys.modules if 'bundle' in one or one == 'numpy'), file=sys.stderr)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT
    )
    assert done.stderr.strip() == ""
