"""What `topoc plan` tells, and that a compile keeps to it."""

import gc
import json
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner
from jsonschema import Draft202012Validator
from tiny_config import deep, tiny
from tiny_gemma4 import text_config

import topoc.dsl.cli
from topoc.dsl.cli import main
from topoc.dsl.load import load
from topoc.dsl.measure import measure
from topoc.lowering.cli.schema import as_text

GOLDEN = Path(__file__).parent / "golden" / "plan"
SHIPPED = Path(__file__).parents[1] / "topologies" / "gemma3_270m.topo"
HEAVY = ("torch", "coremltools", "numpy", "networkx", "rich", "cattrs", "topoc.lowering.emit")
BODY = """topology t {{
  model "tiny/config.json"
  target ane ios18 a17
  context 64
  chunk one = L0-1
  chunk two = L2-3 + norm + head(argmax)
  functions decode, prefill(tokens = 4)
  {more}
}}
"""
TWO = "chunk one = ple + L0-4\n  chunk two = L5-9 + norm + head(argmax)"
GEMMA4 = {
    "in a package": f"{TWO}\n  functions decode, prefill(tokens = 4), verify(tokens = 3)",
    "on the host": TWO.replace("ple + ", "") + "\n  kv { sliding: write shift }",
    "in states": f"{TWO}\n  kv {{ all: store state, row padded }}"
    "\n  functions decode, prefill(tokens = 4, package = separate)",
    "a list of its own": f"{TWO}\n  chunk fill(function = prefill_4) = embed + ple + L0-4"
    "\n  functions decode, prefill(tokens = 4)\n  quantize { ple_table: none }",
}


@pytest.fixture
def topoc_(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    tiny(tmp_path / "tiny")

    def run(*arguments, more=""):
        Path("t.topo").write_text(BODY.format(more=more))
        result = CliRunner().invoke(main, list(map(str, arguments)))
        assert result.exception is None or isinstance(result.exception, SystemExit), result
        return result

    return run


@pytest.fixture
def told(topoc_):
    def run(more=""):
        result = topoc_("plan", "t.topo", "--format", "json", more=more)
        assert result.exit_code == 0, result.stderr
        return json.loads(result.stdout)

    return run


def test_reads_as_expected(golden):
    result = CliRunner().invoke(main, ["plan", str(SHIPPED)])
    assert result.exit_code == 0
    golden(GOLDEN / "gemma3_270m.expect", result.stdout)


def test_json_fits_its_schema(told):
    schema = json.loads(as_text("plan"))
    document = told("expect {\n layers per chunk <= 3\n ms per step <= 9 ms\n}")
    Draft202012Validator(schema).validate(document)
    for key in document:
        wrong = {k: v for k, v in document.items() if k != key}
        assert list(Draft202012Validator(schema).iter_errors(wrong)), key
    document["chunks"][0]["functions"][0]["inputs"][0]["more"] = 1
    assert list(Draft202012Validator(schema).iter_errors(document))


@pytest.mark.parametrize(
    "more",
    ["", "quantize { embed: none }", "kv { all: write blend }", "kv { sliding: write shift }"],
)
def test_a_compile_does_what_was_planned(topoc_, told, more, tmp_path):
    plan = told(more)
    made = topoc_("compile", "t.topo", "--weights", "random:0", "-o", "bundle", more=more)
    assert made.exit_code == 0, made.stderr
    assert_built(plan, json.loads(Path("bundle/manifest.json").read_text()))


@pytest.mark.parametrize("layout", GEMMA4)
def test_a_compile_of_gemma4_does_what_was_planned(topoc_, layout):
    """Per-layer vectors made here and there, shared KV, states, one chunk list for a function."""
    Path("tiny/config.json").write_text(json.dumps(text_config(layers=10, shared=5)))
    head = 'model "tiny/config.json"\n  target gpu\n  context 64'
    Path("g.topo").write_text(f"topology g {{\n  {head}\n  {GEMMA4[layout]}\n}}\n")
    plan = json.loads(topoc_("plan", "g.topo", "--format", "json").stdout)
    made = topoc_("compile", "g.topo", "--weights", "random:0", "-o", "bundle")
    assert made.exit_code == 0, made.stderr
    assert_built(plan, json.loads(Path("bundle/manifest.json").read_text()))
    names = {one["name"] for one in plan["tables"]}
    assert ({"ple.projection", "ple.norm"} <= names) == (layout == "on the host")


def assert_built(plan, manifest):
    """The bundle in the working folder is what was planned."""
    sizes = {one["path"]: one["bytes"] for one in manifest["files"]}
    ends = [(one["id"], one["shape"], one["dtype"]) for one in manifest["buffers"]]
    assert [(one["id"], one["shape"], one["dtype"]) for one in plan["caches"]] == ends
    steps = [step for one in manifest["functions"] for step in one["steps"]]
    for chunk in plan["chunks"]:
        mine = [step for step in steps if step["package"] == f"{chunk['name']}.mlpackage"]
        for function, step in zip(chunk["functions"], mine, strict=True):
            for here, there in (("inputs", "source"), ("outputs", "sink")):
                planned = [(f["name"], f["shape"], f["dtype"], f["kind"]) for f in function[here]]
                built = [
                    (f["feature"], f["shape"], f["dtype"], f[there]["kind"]) for f in step[here]
                ]
                assert planned == built
        weights = next(Path("bundle", f"{chunk['name']}.mlpackage").rglob("weight.bin"))
        assert weights.stat().st_size == pytest.approx(chunk["stored_bytes"], rel=0.01)
    tables = {one["name"]: one["bytes"] for one in plan["tables"]}
    embed = manifest["tables"]["embed"]
    scales = sizes[embed["scales"]] if embed["scales"] else 0
    assert tables["embed"] == sizes[embed["path"]] + scales
    for name, rope in manifest["ropes"].items():
        assert tables[f"rope {name}"] == sizes[rope["path"]]
    if manifest["per_layer"]:
        for name, part in (("ple.projection", "projection"), ("ple.norm", "gain")):
            assert tables[name] == sizes[manifest["per_layer"][part]]
    whole = sum(one["stored_bytes"] for one in plan["chunks"]) + sum(tables.values())
    assert plan["download_bytes"] == whole


def test_loaded_bytes_are_those_of_the_budget_and_stored_ones_hold_gains_twice(told):
    plan = told()
    topology, _ = load("t.topo")
    for chunk, fp16 in zip(plan["chunks"], measure(topology, "fp16 per chunk"), strict=True):
        assert chunk["loaded_bytes"] == pytest.approx(fp16.value, rel=0.01)
        assert chunk["stored_bytes"] > chunk["loaded_bytes"]


def test_kv_bytes_are_those_that_budgets_count(told):
    for more in ("", "kv { all: write blend }"):
        plan = told(more)
        topology, _ = load("t.topo")
        (decode,) = [one for one in plan["calls"] if one["name"] == "decode"]
        (io,) = measure(topology, "kv io per step")
        assert decode["kv_bytes_in"] + decode["kv_bytes_out"] == io.value
        (kept,) = measure(topology, "kv bytes")
        assert sum(one["bytes"] for one in plan["caches"]) == kept.value
        for chunk in plan["chunks"]:
            (step,) = [one for one in chunk["functions"] if one["name"] == "decode"]
            caches = [one["bytes"] for one in step["inputs"] if one["kind"] == "buffer"]
            assert step["kv_bytes_in"] == sum(caches) > 0


def test_budgets_tell_what_is_to_spare_at_the_tightest_chunk(told, topoc_):
    more = (
        "expect {\n layers per chunk <= 3\n fp16 per chunk <= 1 MB\n chunks == 2\n"
        " ms per step <= 9 ms\n disk per chunk <= 1 MB\n layers per chunk >= 1\n}"
    )
    rows = {(one["measure"], one["relation"]): one for one in told(more)["budgets"]}
    layers = rows["layers per chunk", "<="]
    assert (layers["value"], layers["headroom"], layers["limit"]) == (2, 1, 3)
    assert rows["layers per chunk", ">="]["headroom"] == 1
    assert rows["fp16 per chunk", "<="]["chunk"] == "two"  # it has the head
    assert rows["disk per chunk", "<="]["chunk"] == "two"
    assert rows["chunks", "=="]["headroom"] == 0
    assert rows["ms per step", "<="]["value"] is rows["ms per step", "<="]["headroom"] is None
    shown = topoc_("plan", "t.topo", more=more).stdout
    assert "  layers per chunk <= 3: 2 in one, 1 to spare\n" in shown
    assert "  ms per step <= 9 ms: known only after lowering or on a device\n" in shown


def test_a_budget_that_only_a_plan_can_measure_is_an_error_at_its_line(topoc_):
    result = topoc_("plan", "t.topo", more="expect { disk per chunk <= 60 kB }")
    assert result.exit_code == 1
    assert "error[expect.breach]: disk per chunk is" in result.stderr
    assert "t.topo:8:12" in result.stderr
    assert "too much" in result.stdout


def test_what_lint_finds_stops_it(topoc_):
    result = topoc_("plan", "t.topo", more="expect { layers per chunk <= 1 }")
    assert (result.exit_code, result.stdout) == (1, "")
    assert "expect.breach" in result.stderr


def test_what_is_not_lowered_stops_it_by_name(topoc_):
    result = topoc_("plan", "t.topo", more="quantize { embed: palettize(bits = 4) }")
    assert (result.exit_code, result.stdout) == (2, "")
    assert "scheme.not-lowered" in result.stderr


def test_garbage_is_collected_again_after_a_brief_command(topoc_, monkeypatch):
    seen = []
    monkeypatch.setattr(topoc.dsl.cli.view, "result", lambda _: seen.append(gc.isenabled()))
    too_many = "chunk mine(function = prefill_4) = L0-3 + norm + head(topk = 132)"
    for more in ("", too_many):  # the second is refused
        topoc_("plan", "t.topo", more=more)
        assert gc.isenabled()
    assert seen == [False]


def test_a_brief_command_looks_for_no_garbage_when_it_ends():
    code = (
        "import atexit, gc\n"
        "atexit.register(lambda: print(gc.get_freeze_count() > 1000))\n"  # called last
        "from topoc.dsl.cli import main\nmain(['rules'])"
    )
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert result.stdout.endswith("\nTrue\n")


@pytest.mark.parametrize("command", [["lint"], ["fmt", "--check"], ["show"], ["plan"]])
def test_the_light_commands_import_nothing_heavy(command, tmp_path):
    code = (
        "import sys\nfrom topoc.dsl.cli import main\n"
        f"try: main({[*command, 't.topo']!r})\nexcept SystemExit: pass\n"
        f"print(*[m for m in {HEAVY!r} if m in sys.modules], file=sys.stderr)"
    )
    deep(tmp_path / "tiny")
    text = BODY.format(more="").replace("L2-3", "L2-34").replace("64", "2048")
    (tmp_path / "t.topo").write_text(text)
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=tmp_path
    )
    loaded = result.stderr.splitlines()[-1:]
    assert loaded in ([], [""]), result.stderr
