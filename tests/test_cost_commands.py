"""`topoc split` and `topoc diff`, as a shell runs them."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner
from jsonschema import Draft202012Validator
from measured_rows import FITTED, FOLDER, FOURTEEN, HELD_OUT, fitted, measured
from shipped import layout
from tiny_config import deep, tiny
from topo_text import known

import topoc.dsl.resolve
from topoc.dsl.cli import main
from topoc.dsl.diagnostic import Severity
from topoc.dsl.load import load
from topoc.lowering.cli.schema import as_text
from topoc.lowering.cost.features import features
from topoc.lowering.cost.predict import change
from topoc.lowering.cost.profile import dumps, read, shipped

ROOT = Path(__file__).parents[1]
GOLDEN = ROOT / "tests" / "golden" / "split"
BASE = FOLDER / "swa4_padded.topo"
TINY = """topology t {{
  model "tiny/config.json"
  target ane ios18 a19
  context 64
  chunk one = L0-1
  chunk two = L2-3 + norm + head({head})
  functions decode, prefill(tokens = 4)
  {more}
}}
"""


@pytest.fixture
def topoc_(monkeypatch):
    """Run `topoc` with the layer tables of the tests."""
    monkeypatch.setattr(topoc.dsl.resolve, "_reader", lambda: known)
    return invoke


def invoke(*arguments, status=0):
    result = CliRunner().invoke(main, list(map(str, arguments)))
    assert result.exception is None or isinstance(result.exception, SystemExit), result
    assert result.exit_code == status, (result.stdout, result.stderr)
    return result


@pytest.fixture
def tiny_(monkeypatch, tmp_path):
    """A folder with a model of four layers and a topology of it."""
    monkeypatch.chdir(tmp_path)
    tiny(tmp_path / "tiny")

    def write(more="", head="argmax", name="t"):
        Path(f"{name}.topo").write_text(TINY.format(more=more, head=head))

    write()
    return write


def codes(result):
    return [
        line.split("[")[1].split("]")[0] for line in result.stderr.splitlines() if "error[" in line
    ]


# What people read.


ROWS = sorted(FOLDER.glob("*.topo"))
CASES = {
    "calibrate": ["--calibrate", *ROWS, "--held-out", FOLDER / f"{HELD_OUT}.topo"],
    "calibrate_fourteen": ["--calibrate", *ROWS, "--rows", FOURTEEN],
    "e2b": [BASE, "--chunks", "1-4", "--top", "6", "--explain"],
    "e2b_two_to_three": [BASE, "--chunks", "2-3", "--top", "3", "--objective", "bytes"],
    "e2b_pareto": [BASE, "--pareto", "time,memory"],
    "e4b": [FOLDER / f"{HELD_OUT}.topo", "--top", "2"],
}


@pytest.mark.parametrize("name", CASES)
def test_splits_read_as_expected(name, topoc_, golden):
    golden(GOLDEN / f"{name}.expect", topoc_("split", *CASES[name]).stdout)


DIFFS = {
    "four_to_three": (BASE, FOLDER / "threeway_padded.topo"),
    "three_to_two": (FOLDER / "threeway_padded.topo", FOLDER / "merged2_padded.topo"),
    "to_state": (layout("threeway"), layout("stateful3")),
    "mixed_bits": (layout("swa4"), layout("future_mixed_quant")),
    "verdict": (layout("swa4"), layout("wfa")),
    "checkpoint": (layout("swa4"), layout("e4b_swa4")),
    "same": (BASE, BASE),
}


@pytest.mark.parametrize("name", DIFFS)
def test_differences_read_as_expected(name, topoc_, golden):
    golden(GOLDEN / f"diff_{name}.expect", topoc_("diff", *DIFFS[name]).stdout)


def test_three_to_two_says_that_the_data_do_not_resolve_it(topoc_):
    told = topoc_("diff", *DIFFS["three_to_two"]).stdout
    assert "the interval holds zero, and the data do not resolve it" in told


def printed_by(page, more, monkeypatch):
    """What a command of the page prints: as a shell runs it in a fresh checkout."""
    given = f"topoc split --calibrate topologies/measured/*.topo {more}"
    (line,) = [line for line in page.splitlines() if line.startswith(given)]
    monkeypatch.chdir(ROOT)
    return invoke(
        *[one for word in line.split()[1:] for one in sorted(map(str, Path().glob(word))) or [word]]
    ).stdout


def test_the_page_holds_the_command_of_fourteen_rows_and_its_errors(monkeypatch):
    page = (ROOT / "docs" / "cost.md").read_text("utf-8")
    printed = printed_by(page, "--rows", monkeypatch)
    assert printed == (GOLDEN / "calibrate_fourteen.expect").read_text("utf-8")
    head = printed.split("\n\n")[0]
    assert "fit RMSE " in head
    assert "leave-one-chunk-out " in head
    assert f"```\n{head}\n```" in page


def test_the_page_holds_its_command_and_what_that_prints(monkeypatch):
    page = (ROOT / "docs" / "cost.md").read_text("utf-8")
    printed = printed_by(page, "--held-out", monkeypatch)
    assert printed == (GOLDEN / "calibrate.expect").read_text("utf-8")
    for block in printed.rstrip().split("\n\n"):
        assert block in page
    assert {line.split()[0] for line in printed.splitlines() if HELD_OUT in line} == {HELD_OUT}
    assert printed.index(HELD_OUT) > printed.index("held out")


@pytest.mark.parametrize(
    ("before", "after", "row"),
    [
        ("swa4_padded", "threeway_padded", "four chunks to three (8/7/10/10 to 8/17/10)"),
        ("swa4_padded", "merged2_padded", "four to two (15/20)"),
        ("threeway_padded", "merged2_padded", "three to two"),
        ("swa4_padded", "swa4_8k_padded", "2048 positions to 8192"),
    ],
)
def test_the_page_holds_the_intervals_of_changes(before, after, row):
    page = (ROOT / "docs" / "cost.md").read_text("utf-8")
    old, new = (features(one, one.functions[0]) for one in measured(before, after))
    found = change(fitted().profile, old, new)
    told = f"| {row} | {found.ms:+.1f} ms | {found.low:+.1f} to {found.high:+.1f} |"
    assert told in page


# Splits.


def test_json_fits_its_schema(topoc_):
    schema = Draft202012Validator(json.loads(as_text("split")))
    for more in (["--costs", "a19"], ["--pareto", "bytes,memory"], ["--chunks", "1"]):
        status = 1 if "1" in more else 0
        told = json.loads(topoc_("split", BASE, "--format", "json", *more, status=status).stdout)
        schema.validate(told)
        assert told["least"] <= told["most"]
        for split in told["splits"]:
            assert sum(split["layers"]) == 35
    told["more"] = 1
    assert list(schema.iter_errors(told))


def test_one_chunk_is_refused_with_the_name_of_the_layout_that_is_it(topoc_):
    told = topoc_("split", layout("swa4"), "--explain").stdout
    (line,) = [line for line in told.splitlines() if line.endswith(": merged1, stateful1")]
    assert "refused: " in line
    assert "chunk.too-many-layers" in line
    assert "merged1 (35): chunk.too-many-layers: `chunk1` holds 35 layers" in told


def test_layouts_beside_it_are_ranked_as_the_phone_ranked_them(topoc_):
    told = json.loads(topoc_("split", layout("swa4"), "--format", "json").stdout)
    names = [one["name"] for one in told["layouts"] if not one["refused"]]
    assert names.index("threeway") < names.index("topology_i") < names.index("swa4")


def test_a_tie_with_a_measured_layout_names_it(topoc_):
    told = topoc_("split", BASE, "--chunks", "3", "--top", "99").stdout.splitlines()
    at = next(at for at, line in enumerate(told) if "  8/17/10 " in line)
    assert told[at].endswith("tie")
    notes = [line.strip() for line in told[at + 1 : at + 4]]
    assert "measured as threeway_padded: 28.9 to 30.3 ms on iPhone 17 Pro" in notes
    (line,) = [line for line in told if line.startswith("measured layouts that tie with 1: ")]
    assert "threeway_padded" in line
    assert "swa4_padded" in line
    assert "prefill_512_padded" not in line  # its decode was not measured
    assert "merged2_padded" not in line  # it breaks a budget


def test_shipped_swa4_names_the_measured_layouts_that_tie(tmp_path):
    """By its name alone, from a folder in which there is nothing."""
    told = invoke("split", "swa4", "--chunks", "3-4", "--top", "1").stdout.splitlines()
    (line,) = [line for line in told if line.startswith("measured layouts that tie with 1: ")]
    names = set(line.partition(": ")[2].split(", "))
    assert {"threeway_padded", "topology_i_padded", "swa4_padded"} <= names
    assert "merged2_padded" not in names  # it breaks a budget


def test_where_nothing_fits_it_says_so_and_why(topoc_):
    result = topoc_("split", BASE, "--chunks", "1", "--explain", status=1)
    assert codes(result) == ["split.none"]
    assert "chunks break `layers per chunk <= 20`" in result.stdout


def test_a_budget_of_whole_splits_is_told_as_what_refused_them(topoc_):
    result = topoc_("split", BASE, "-D", "C=4096", "--chunks", "3", "--explain", status=1)
    (line,) = [line for line in result.stdout.splitlines() if "kv io per step <= 70 MB" in line]
    least = float(line.rpartition("the least of any is ")[2].removesuffix(" MB"))
    assert least > 70
    told = topoc_("split", BASE, "--chunks", "3", "--explain", "--top", "1").stdout
    assert "splits that break `kv io per step <= 70 MB`; the least of any is" in told


def test_milliseconds_of_another_chip_are_asked_for(tiny_):
    tiny_()
    Path("t.topo").write_text(Path("t.topo").read_text().replace("a19", "a17"))
    result = invoke("split", "t.topo", status=2)
    assert codes(result) == ["cost.no-profile"]
    assert "measured chips: a19" in result.stderr
    assert "beyond the fit" in invoke("split", "t.topo", "--costs", "a19").stdout
    assert " ms" not in invoke("split", "t.topo", "--objective", "bytes").stdout.splitlines()[2]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["t.topo", "--chunks", "3-2"], "no range of chunks"),
        (["t.topo", "--chunks", "0"], "no range of chunks"),
        (["t.topo", "--pareto", "time,time"], "not two of time, bytes"),
        (["t.topo", "--pareto", "time"], "not two of"),
        (["t.topo", "--top", "0"], "0 is not in the range"),
        (["t.topo", "--costs", "m9"], "no file of costs and no chip"),
        (["t.topo", "--costs", "t.topo"], "it is no profile"),
        (["t.topo", "t.topo"], "one file at a time"),
        (["nowhere.topo"], "no shipped topology is called"),
        (["--calibrate", "t.topo"], "no figures in `measured` blocks"),
        (["--calibrate", "t.topo", "--device", "X"], "no figures of `X`"),
        (["--calibrate", "t.topo", "--top", "2"], "--top is about splits, and --calibrate fits"),
        (["--calibrate", "t.topo", "--format", "json"], "--format is about splits"),
        (["--calibrate", "t.topo", "-D", "C=1"], "-D is about splits"),
        (["t.topo", "--held-out", "t.topo"], "--held-out is about a fit: add --calibrate"),
        (["t.topo", "-o", "costs.json"], "-o is about a fit: add --calibrate"),
        (["t.topo", "--pareto", "time,bytes", "--top", "3"], "none beats by both: leave out --top"),
        (["t.topo", "--chunks", "5-9"], "`t` has 4 layers, which make 4 chunks at most"),
    ],
)
def test_what_can_not_be_done_is_said(arguments, words, tiny_):
    assert words in invoke("split", *arguments, status=2).stderr


def test_a_budget_of_time_bounds_the_splits(tiny_):
    whole = json.loads(invoke("split", "t.topo", "--top", "9", "--format", "json").stdout)
    times = [one["step"]["ms"] for one in whole["splits"]]
    limit = times[0] + 0.02
    tiny_(f"expect {{ ms per step <= {limit:.3f} ms }}")
    told = json.loads(invoke("split", "t.topo", "--top", "9", "--format", "json").stdout)
    assert [one["step"]["ms"] for one in told["splits"]] == [ms for ms in times if ms <= limit]
    assert 0 < len(told["splits"]) < len(times)


# Emitted files.


def test_emitted_splits_are_topologies_that_differ_as_told(topoc_, tmp_path):
    result = topoc_("split", BASE, "--chunks", "3-4", "--top", "3", "--emit", tmp_path / "out")
    files = sorted((tmp_path / "out").iterdir())
    assert len(files) == 3
    assert all(str(one) in result.stderr for one in files)
    told = json.loads(
        topoc_("split", BASE, "--chunks", "3-4", "--top", "3", "--format", "json").stdout
    )
    for split in told["splits"]:
        path = tmp_path / "out" / f"{split['name']}.topo"
        assert topoc_("fmt", "--check", path).stdout == ""
        topology, findings = load(path, layers=known)
        assert [one for one in findings if one.severity is Severity.ERROR] == []
        assert [len(one.layers) for one in topology.chunks] == split["layers"]
        assert f"{split['step']['ms']:.1f} ± " in topology.doc
        assert topology.measurements == ()
        source, _ = load(BASE, layers=known)
        moved = [at for at in range(35) if place(source, at) != place(topology, at)]
        found = json.loads(topoc_("diff", BASE, path, "--format", "json").stdout)
        assert layers_of(found["changes"]["chunks"]) == moved
        assert found["changes"]["quantisation"] == found["changes"]["attention"] == []


def place(topology, at):
    return next(one.name for one in topology.chunks if at in one.layers)


def layers_of(changes):
    """The layers that a diff says moved."""
    words = [word for one in changes for word in one["what"].split(", ") if word.startswith("L")]
    found = []
    for word in words:
        first, _, last = word.removeprefix("L").partition("-")
        found += range(int(first), int(last or first) + 1)
    return sorted(found)


def test_an_emitted_split_keeps_allowances_and_definitions(topoc_, tmp_path):
    path = tmp_path / "big.topo"
    path.write_text(
        'topology big {\n model "gemma4.json"\n target ane ios18 a19\n param C = 2048\n context C\n'
        " kv { all: store state, write slice }\n functions decode\n"
        " chunk a = ple + L0-19\n chunk b = L20-34 + norm + head(argmax)\n"
        ' allow state.update because "a test"\n'
        ' allow chunk.too-many-layers in a because "it is only this one"\n}\n'
    )
    topoc_("split", path, "--chunks", "2", "--top", "1", "-D", "C=4096", "--emit", tmp_path)
    (made,) = tmp_path.glob("big_*.topo")
    text = made.read_text()
    assert "extends big {" in text
    assert "param C = 4096" in " ".join(text.split())
    assert 'allow state.update because "a test"' in text
    assert "too-many-layers" not in text
    topology, findings = load(made, layers=known)
    assert topology.context == 4096
    assert not [one for one in findings if one.severity is Severity.ERROR]
    result = topoc_("split", path, "--chunks", "2", "--top", "1", "--emit", tmp_path, status=2)
    assert codes(result) == ["name.duplicate"]


def test_a_function_keeps_its_own_chunks(topoc_, tmp_path):
    base = layout("prefill_skips_readers")
    topoc_("split", base, "--chunks", "3", "--top", "1", "--emit", tmp_path)
    (made,) = tmp_path.glob("*.topo")
    (source, _), (split, findings) = load(base, layers=known), load(made, layers=known)
    assert not [one for one in findings if one.severity is Severity.ERROR]
    assert split.functions[1].chunks == source.functions[1].chunks is not None
    assert len(split.chunks) == 3


def test_what_has_no_file_of_its_own_is_not_extended(topoc_, tmp_path):
    path = tmp_path / "other.topo"
    path.write_text(
        'topology t {\n model "gemma3.json"\n target ane ios18 a19\n context 64\n'
        " chunk a = L0-17 + norm + head(argmax)\n functions decode\n}\n"
    )
    result = topoc_("split", path, "--emit", tmp_path / "out", status=2)
    assert codes(result) == ["split.no-base"]
    assert not (tmp_path / "out").exists()


# Costs of one's own.


def test_a_refit_is_written_and_used(topoc_, tmp_path):
    path = tmp_path / "mine.json"
    topoc_("split", "--calibrate", *FITTED, "-o", path)
    assert dumps(read(path)) == dumps(fitted().profile)
    given = ("split", BASE, "--top", "1", "--format", "json", "--costs")
    ours, theirs = (json.loads(topoc_(*given, one).stdout) for one in (path, "a19"))
    assert ours == theirs
    profile = json.loads(path.read_text())
    profile["coefficients"]["dispatch"] = 9.0
    path.write_text(json.dumps(profile))
    assert json.loads(topoc_(*given, path).stdout) != theirs


def test_the_figures_of_one_device_are_fitted(topoc_, tmp_path):
    text = (FOLDER / "merged2_padded.topo").read_text().replace("swa4_padded", f'"{BASE}"')
    other = tmp_path / "merged2_padded.topo"
    other.write_text(text.replace("iPhone 17 Pro", "Another"))
    told = topoc_("split", "--calibrate", *FITTED, other).stdout
    assert "fitted on 30 rows" in told
    assert "merged2_padded on 2026-04-17: Another" in told
    result = topoc_("split", "--calibrate", *FITTED, other, "--device", "Another", status=2)
    assert codes(result) == ["cost.too-few-rows"]


# Plans.


def test_a_plan_tells_ms_of_the_chip_and_adds_up(tiny_):
    told = json.loads(invoke("plan", "t.topo", "--format", "json").stdout)
    assert told["costs"] == "iPhone 17 Pro"
    host = shipped("a19").coefficients["host"]
    for call in told["calls"]:
        mine = [f for c in told["chunks"] for f in c["functions"] if f["name"] == call["name"]]
        assert call["ms"]["ms"] == pytest.approx(sum(f["ms"]["ms"] for f in mine) + host, abs=0.01)
        assert call["tokens_per_second"] == pytest.approx(
            1000 * call["tokens"] / call["ms"]["ms"], rel=1e-3
        )
        assert call["ms"]["outside"]
    assert "beyond the fit: weights of" in invoke("plan", "t.topo").stdout


@pytest.mark.parametrize("more", ["target gpu ios18 a19", "target ane ios18 a17"])
def test_a_plan_without_measurements_tells_no_ms(more, tiny_):
    tiny_()
    Path("t.topo").write_text(Path("t.topo").read_text().replace("target ane ios18 a19", more))
    told = json.loads(invoke("plan", "t.topo", "--format", "json").stdout)
    assert told["costs"] is None
    assert [one["ms"] for one in told["calls"]] == [None, None]
    assert "no ms: this unit and chip were not measured" in invoke("plan", "t.topo").stdout


def test_a_budget_of_time_breaks_with_the_whole_interval(tiny_):
    call = json.loads(invoke("plan", "t.topo", "--format", "json").stdout)["calls"][0]
    costs = json.loads(dumps(shipped("a19")))
    costs["sigma"] = 0.001
    costs["covariance"] = [[0.0] * 4] * 4
    costs["variance"] = {}
    Path("sure.json").write_text(json.dumps(costs))
    tiny_(f"expect {{ ms per step <= {call['ms']['ms'] / 2:.3f} ms }}")
    doubtful = invoke("plan", "t.topo")
    assert "too much" in doubtful.stdout
    sure = invoke("plan", "t.topo", "--costs", "sure.json", status=1)
    assert codes(sure) == ["expect.breach"]
    assert "as predicted" in sure.stderr


# Differences.


def test_exit_codes_of_diff(topoc_):
    topoc_("diff", BASE, FOLDER / "threeway_padded.topo", status=0)
    topoc_("diff", BASE, FOLDER / "threeway_padded.topo", "--exit-code", status=1)
    topoc_("diff", BASE, BASE, "--exit-code", status=0)
    topoc_("diff", BASE, "nowhere.topo", "--exit-code", status=2)


def test_json_of_a_diff_fits_its_schema(topoc_, tiny_):
    schema = Draft202012Validator(json.loads(as_text("diff")))
    for pair in DIFFS.values():
        told = json.loads(topoc_("diff", *pair, "--format", "json").stdout)
        schema.validate(told)
    told["more"] = 1
    assert list(schema.iter_errors(told))


def test_what_breaks_a_host_is_marked(tiny_):
    tiny_(name="a")
    tiny_("kv { all: write blend }", name="b")
    tiny_("quantize { embed: none }", name="c")
    found = features_of("a", "b")
    rows = [one for one in found if one["change"] == "removed"]
    assert rows
    assert all(one["breaks_host"] for one in rows)
    added = [one for one in found if one["change"] == "added"]
    assert {one["breaks_host"] for one in added} == {True, False}
    for one in added:
        assert one["breaks_host"] is one["after"].startswith("input")
    assert features_of("a", "c") == []
    text = invoke("diff", "a.topo", "c.topo").stdout
    assert "features: the same; a host drives both alike" in text
    assert "embed: int8(per = row) → none" in text


def features_of(one, other):
    path = [f"{name}.topo" for name in (one, other)]
    return json.loads(invoke("diff", *path, "--format", "json").stdout)["features"]


def test_a_longer_context_reshapes_what_depends_on_it(tiny_):
    tiny_(name="a")
    Path("b.topo").write_text(Path("a.topo").read_text().replace("context 64", "context 128"))
    found = features_of("a", "b")
    assert {one["change"] for one in found} == {"changed"}
    assert {one["name"] for one in found} >= {"k_full", "mask_full"}
    assert "1×1×1×65" in next(one for one in found if one["name"] == "mask_full")["before"]


@pytest.mark.parametrize("command", [["split"], ["diff", "t.topo"], ["plan"]])
def test_they_start_without_torch_and_coremltools(command, tmp_path):
    heavy = ("torch", "coremltools", "numpy", "transformers", "safetensors", "scipy")
    code = (
        "import sys\nfrom topoc.dsl.cli import main\n"
        f"try: main({[*command, 't.topo']!r})\nexcept SystemExit as end: assert not end.code\n"
        f"print(*[m for m in {heavy!r} if m in sys.modules], file=sys.stderr)"
    )
    deep(tmp_path / "tiny")
    text = TINY.format(more="", head="argmax").replace("L2-3", "L2-34").replace("64", "2048")
    (tmp_path / "t.topo").write_text(text)
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, cwd=tmp_path
    )
    assert result.returncode == 0, result.stderr
    assert result.stdout
    assert result.stderr.split("\n")[-2] == "", result.stderr
