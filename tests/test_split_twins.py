"""Splits of Gemma 4 that are written to files: each compiles, and computes what transformers does.

Four layers, of which two read the KV of two others, can be cut in eight ways, and all are proved.
Of the 35 layers of E2B one split stands for its difference; `test_twins` proves such cuts of them.
"""

import json

import pytest
from click.testing import CliRunner
from shipped import layout
from test_cost_commands import layers_of, place
from twins import CONTEXT, TOKENS, Checkpoint, W, bundled

from topoc.dsl.cli import main
from topoc.dsl.diagnostic import Severity
from topoc.dsl.load import load
from topoc.lowering.parity.gates import telling_positions
from topoc.lowering.parity.proof import prove

WAYS = ("4", "1/3", "2/2", "3/1", "1/1/2", "1/2/1", "2/1/1", "1/1/1/1")
SMALL = f"""topology small {{
  model "tiny/config.json"
  target ane ios18 a19
  context {CONTEXT}
  kv {{
    sliding: write shift
    full: write blend
  }}
  chunk one = ple + L0-2
  chunk two = L3 + norm + head(logits)
  functions decode, verify(tokens = 3)
  quantize {{ weights: none }}
}}
"""


def topoc(*arguments):
    result = CliRunner().invoke(main, list(map(str, arguments)))
    assert result.exit_code == 0, (result.stdout, result.stderr)
    return result.stdout


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    """A tiny checkpoint of four layers, its topology, and every split that is emitted of it."""
    folder = tmp_path_factory.mktemp("split")
    dimensions = {"layers": 4, "period": 2, "shared": 2, "kv_heads": 1, "double": True}
    checkpoint = Checkpoint.make(folder / "tiny", **dimensions)
    path = folder / "small.topo"
    path.write_text(SMALL)
    topoc("split", path, "--top", len(WAYS) + 1, "--emit", folder / "out")
    return checkpoint, path, {one.stem: one for one in (folder / "out").iterdir()}


def test_every_split_is_emitted(small):
    _, _, made = small
    assert sorted(made) == sorted(f"small_{way.replace('/', '_')}" for way in WAYS)


@pytest.mark.parametrize("way", WAYS)
def test_its_bundle_keeps_every_gate(way, small, tmp_path):
    checkpoint, _, made = small
    topology, findings = load(made[f"small_{way.replace('/', '_')}"])
    assert [one for one in findings if one.severity is Severity.ERROR] == []
    assert [len(one.layers) for one in topology.chunks] == list(map(int, way.split("/")))
    bundle = bundled(topology, checkpoint.folder, tmp_path / "b", "fp16")
    packages = {step.package for one in bundle.manifest.functions for step in one.steps}
    assert packages == {f"{one.name}.mlpackage" for one in topology.chunks}
    verdicts = list(prove(bundle, checkpoint.oracle, telling_positions([W], len(TOKENS) - 1)))
    assert {one.gate for one in verdicts} == {"ii", "ii-unrounded", "iii"}
    assert [one for one in verdicts if not one.kept] == []


def way_of(topology, donor):
    """The chunks that the KV of a layer leaves and enters, none where it stays."""
    (home,) = (one for one in topology.chunks if donor in one.layers)
    readers = {one.index for one in topology.blocks if one.kv.donor == donor} - {*home.layers}
    entered = [one for one in topology.chunks if readers & {*one.layers}]
    return [home, *entered] if entered else []


def words(way):
    return f"{way[0].name} to {', '.join(one.name for one in way[1:])}" if way else None


def runs(chunks):
    return [one.layers for one in chunks]


def assert_told(source, split, donors):
    """What the difference says is what moved, and nothing else; gives the layers that moved."""
    before, after = (load(one)[0] for one in (source, split))
    told = json.loads(topoc("diff", source, split, "--format", "json"))["changes"]
    was = {one.layers: one.name for one in before.chunks}
    alike = {one.name: was[one.layers] for one in after.chunks if one.layers in was}
    count = len(before.blocks)
    names = [(place(before, at), place(after, at)) for at in range(count)]
    moved = [at for at, (old, new) in enumerate(names) if old != alike.get(new, new)]
    renamed = [one for one in told["chunks"] if one["what"].startswith("chunk of ")]
    pairs = {one["after"]: one["before"] for one in renamed}
    assert pairs == {new: old for new, old in alike.items() if new != old}
    assert layers_of([one for one in told.pop("chunks") if one not in renamed]) == moved
    ways = {at: (way_of(before, at), way_of(after, at)) for at in donors}
    assert {one["what"]: (one["before"], one["after"]) for one in told.pop("kv")} == {
        f"KV of L{at} goes": (words(old), words(new))
        for at, (old, new) in ways.items()
        if runs(old) != runs(new)
    }
    assert all(one["after"].startswith("prototype") for one in told.pop("verdict"))
    assert {subject for subject, found in told.items() if found} == set()
    return moved


@pytest.mark.parametrize("way", WAYS)
def test_a_difference_tells_what_moved_and_nothing_else(way, small):
    _, path, made = small
    assert_told(path, made[f"small_{way.replace('/', '_')}"], (0, 1))


def test_a_difference_of_e2b_tells_what_moved(tmp_path):
    topoc("split", layout("swa4"), "--chunks", "3", "--top", "1", "--emit", tmp_path)
    (made,) = tmp_path.iterdir()
    assert assert_told(layout("swa4"), made, (13, 14)) != []
