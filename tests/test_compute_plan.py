"""Expected units of ops, and a device's compute plan held against them."""

import importlib.util
import json
import shutil
from pathlib import Path
from types import SimpleNamespace

import mil_text
import pytest
from click.testing import CliRunner

from topoc.dsl.cli import main
from topoc.dsl.diagnostic import TopocError
from topoc.dsl.lint.placement import SEEN, TOLD, table
from topoc.lowering.lint.compute_plan import SCHEMA, compare, read_plan

ROOT = Path(__file__).parent.parent
TINY = ROOT / "examples" / "conformance" / "tiny.topo"
PACKAGE = TINY.parent / "bundle" / "second.mlpackage"
TEXT = """
main(x: fp16[1,64,1,4], ids: int32[1]) {
  w: fp16[64,64,1,1] = constexpr_lut_to_dense(indices=uint4[64,64,1,1], lut=fp16[1,1,1,1,16,1])
  a: fp16[1,64,1,4] = conv(x=x, weight=w)
  b: fp16[1,64,1,4] = conv(x=a, weight=fp16[64,1,1,1], groups=64)
  c: fp32[1,64,1,4] = cast(x=b, dtype="fp32")
  d: fp32[1,64,1,4] = exp(x=c)
  e: fp16[1,64,1,4] = cast(x=d, dtype="fp16")
  f: fp16[1,64,1,4] = cumsum(x=e, axis=1)
  g: fp16[1,64,1,4] = erf(x=f)
  h: fp16[1,64,1,4] = exp(x=g)
  i: fp16[1,1,1,1,4] = reshape(x=h, shape=[1, 1, 1, 1, 4])
  j: fp16[1,1,1,1,1] = matmul(x=i, y=i, transpose_y=true)
  k: fp16[1,1,1,1,1,1] = exp(x=j)
  return k
}
"""


def test_each_op_is_expected_where_the_rules_saw_its_like():
    rows = {(row.kind, row.unit): row.count for row in table(mil_text.package(TEXT))}
    assert rows == {
        ("conv", "ane"): 1,
        ("conv", "unknown"): 1,
        ("cast", "cpu"): 2,
        ("exp", "cpu"): 1,
        ("exp", "ane"): 1,
        ("exp", "unknown"): 1,  # of six axes
        ("cumsum", "cpu"): 1,
        ("erf", "unknown"): 1,
        ("reshape", "ane"): 1,
        ("matmul", "cpu"): 1,
    }


def test_no_kind_is_both_seen_there_and_told_of():
    assert not SEEN & set(TOLD)


def written(folder, ops, **changes):
    plan = {"schema": SCHEMA, "device": "Mac16,1", "system": "macOS 26.0", "functions": ops}
    path = folder / "plan.json"
    path.write_text(json.dumps(plan | changes))
    return path


def op(kind, output, unit):
    return {"op": kind, "output": output, "unit": unit, "supported": [], "cost": None}


def test_a_plan_is_compared_op_by_op_and_dialects_and_constants_don_t_count(tmp_path):
    ops = [
        op("const", "w_lut", None),
        op("ios18.constexpr_lut_to_dense", "w", None),
        op("ios18.conv", "a", "ane"),
        op("ios18.conv", "b", "cpu"),
        op("ios16.exp", "d", "gpu"),
        op("exp", "h", "cpu"),
        op("cumsum", "f", None),
        op("mul", "elsewhere", "ane"),
    ]
    found = compare(mil_text.package(TEXT), read_plan(written(tmp_path, {"main": ops})))
    assert found.agreed == 1  # conv a
    assert found.open == 2  # conv b has no expectation, cumsum no plan
    assert [(one.kind, one.expected, one.planned, one.first) for one in found.differences] == [
        ("exp", "cpu", "gpu", "d"),
        ("exp", "ane", "cpu", "h"),
    ]
    # `w_lut` and `elsewhere` are no values of ours; c, e, g, i, j and k are not in the plan
    assert found.unmatched == 8


@pytest.mark.parametrize(
    ("changes", "part"),
    [
        ({"schema": "topoc.compute-plan/2"}, "schema"),
        ({"functions": []}, "functions"),
        ({"functions": {"main": {}}}, "functions/main"),
        ({"functions": {"main": [3]}}, "functions/main/0"),
        ({"functions": {"main": [{"op": "conv", "output": "a", "unit": "npu"}]}}, "main/0/unit"),
        ({"functions": {"main": [{"output": "a", "unit": None}]}}, "main/0/op"),
        ({"device": None}, "device"),
    ],
)
def test_a_plan_of_another_form_is_refused_at_its_place(tmp_path, changes, part):
    path = written(tmp_path, {"main": []}, **changes)
    with pytest.raises(TopocError) as raised:
        read_plan(path)
    (finding,) = raised.value.findings
    assert finding.code == "compute-plan.unreadable"
    assert part in finding.message
    assert finding.help


def topoc(*arguments):
    done = CliRunner().invoke(main, [str(one) for one in arguments])
    assert done.exception is None or isinstance(done.exception, SystemExit)
    return done.exit_code, done.stdout + done.stderr


def test_the_command_lists_ops_and_compares(tmp_path):
    plan = written(tmp_path, {"decode": [op("ios18.conv", "l1_q", "gpu")]})
    status, out = topoc("lint", PACKAGE, "--ops", "--plan", plan)
    assert status == 0
    assert "predicted from what was seen of other programs" in out
    assert "  reduce_argmax" in out
    assert "plan of Mac16,1, macOS 26.0: 0 of 1 predictions agree" in out
    assert "decode/l1_q" in out


@pytest.mark.parametrize("file", [PACKAGE, TINY])
def test_a_plan_that_is_not_there_is_an_answer_and_no_traceback(tmp_path, file):
    status, out = topoc("lint", file, "--plan", tmp_path / "none.json")
    assert status == 2
    assert "compute-plan.missing" in out


def test_the_command_lists_the_ops_of_a_topology_s_programs(tmp_path):
    plan = written(tmp_path, {"decode": [op("ios18.conv", "l1_q", "gpu")]})
    status, out = topoc("lint", TINY, "--plan", plan)
    assert status == 0
    listed, package = (topoc("lint", one, "--ops")[1] for one in (TINY, PACKAGE))
    table = package.partition("may place ops otherwise")[2].partition("1 file")[0]
    assert table.count("\n  ") > 10
    assert table.strip() in listed  # the same programs, before and after they are written
    assert "first.mlpackage: predicted" in listed
    assert "0 of 1 predictions agree" in out


def test_a_topology_with_errors_has_no_programs_to_list(tmp_path):
    path = tmp_path / "wrong.topo"
    path.write_text(TINY.read_text().replace("context", "contxt", 1))
    status, out = topoc("lint", path, "--ops")
    assert status == 1
    assert "its operations are not listed, since the text has errors" in out


def test_the_packages_of_a_folder_that_can_be_read_are_listed(tmp_path):
    shutil.copytree(PACKAGE, tmp_path / "good.mlpackage")
    (tmp_path / "bad.mlpackage").mkdir()
    status, out = topoc("lint", tmp_path, "--ops")
    assert status == 1
    assert out.count("bundle.unreadable-package") == 1
    assert "good.mlpackage: predicted" in out


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ((PACKAGE, "--ops", "--format", "json"), "leave out --format"),
        ((PACKAGE, "--prompt", "x"), "add it"),
        ((PACKAGE, "--prompt-ids", "1"), "add it"),
        ((PACKAGE, "--ranges"), "second.mlpackage' is none"),
        ((TINY, "--ranges"), "tiny.topo' is none"),
    ],
)
def test_options_that_would_say_nothing_are_refused(arguments, told):
    status, out = topoc("lint", *arguments)
    assert status == 2
    assert told in out


def test_what_the_exporter_writes_is_what_is_read(tmp_path):
    """By stand-ins for coremltools' classes: the script itself runs on a Mac only."""
    path = ROOT / "examples" / "export_compute_plan.py"
    spec = importlib.util.spec_from_file_location("export_compute_plan", path)
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    device = type("MLNeuralEngineComputeDevice", (), {})()
    usage = SimpleNamespace(preferred_compute_device=device, supported_compute_devices=[device])

    class Plan:
        def get_compute_device_usage_for_mlprogram_operation(self, one):
            return None if one.operator_name == "const" else usage

        def get_estimated_cost_for_mlprogram_operation(self, _):
            return SimpleNamespace(weight=0.5)

    def made(kind, name, *blocks):
        outputs = [SimpleNamespace(name=name)] if name else []
        return SimpleNamespace(operator_name=kind, outputs=outputs, blocks=list(blocks))

    inner = SimpleNamespace(operations=[made("ios18.exp", "h")])
    block = SimpleNamespace(
        operations=[made("const", "k"), made("write_state", ""), made("cond", "y", inner)]
    )
    told = list(script.ops(Plan(), block))
    assert script.SCHEMA == SCHEMA
    plan = read_plan(written(tmp_path, {"main": told}))
    assert [(one.kind, one.output, one.unit) for one in plan.functions["main"]] == [
        ("const", "k", None),
        ("cond", "y", "ane"),
        ("exp", "h", "ane"),
    ]
    assert told[1]["cost"] == 0.5
