"""A split of Gemma 4 that is written to a file compiles, and computes what its source does."""

import json

import pytest
from click.testing import CliRunner
from shipped import layout
from test_cost_commands import layers_of, place
from tiny_gemma4 import E2B
from twins import CONTEXT, TOKENS, Checkpoint, W, bundled

from topoc.dsl.cli import main
from topoc.dsl.diagnostic import Severity
from topoc.dsl.load import load
from topoc.lowering.parity.gates import telling_positions
from topoc.lowering.parity.proof import prove


def topoc(*arguments):
    result = CliRunner().invoke(main, list(map(str, arguments)))
    assert result.exit_code == 0, (result.stdout, result.stderr)
    return result.stdout


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    """Four chunks of a tiny checkpoint, as swa4 cuts them, and a split into three."""
    folder = tmp_path_factory.mktemp("split")
    checkpoint = Checkpoint.make(folder / "tiny", **E2B)
    (folder / "whole.topo").write_text(
        f'topology whole extends "{layout("swa4")}" {{\n'
        f'  model "tiny/config.json"\n  param C = {CONTEXT}\n  quantize {{ weights: none }}\n}}\n'
    )
    path = folder / "whole.topo"
    topoc("split", path, "--chunks", "3", "--top", "1", "--emit", folder / "out")
    (made,) = (folder / "out").iterdir()
    return checkpoint, path, made


def test_its_bundle_keeps_every_gate(source, tmp_path):
    checkpoint, _, made = source
    topology, findings = load(made)
    assert [one for one in findings if one.severity is Severity.ERROR] == []
    assert len(topology.chunks) == 3
    bundle = bundled(topology, checkpoint.folder, tmp_path / "b", "fp16")
    packages = {step.package for one in bundle.manifest.functions for step in one.steps}
    assert packages == {f"{one.name}.mlpackage" for one in topology.chunks}
    verdicts = list(prove(bundle, checkpoint.oracle, telling_positions([W], len(TOKENS) - 1)))
    assert {one.gate for one in verdicts} == {"ii", "ii-unrounded", "iii"}
    assert [one for one in verdicts if not one.kept] == []


def way(topology, donor):
    """The chunks that the KV of a layer leaves and enters, in words."""
    readers = {place(topology, at) for at in range(35) if topology.blocks[at].kv.donor == donor}
    return f"{place(topology, donor)} to {', '.join(sorted(readers - {place(topology, donor)}))}"


def test_a_difference_tells_what_moved_and_nothing_else(source):
    _, path, made = source
    before, after = (load(one)[0] for one in (path, made))
    told = json.loads(topoc("diff", path, made, "--format", "json"))
    moved = [at for at in range(35) if place(before, at) != place(after, at)]
    assert layers_of(told["changes"].pop("chunks")) == moved != []
    ways = [(one["what"], one["before"], one["after"]) for one in told["changes"].pop("kv")]
    assert ways == [(f"KV of L{at} goes", way(before, at), way(after, at)) for at in (13, 14)]
    assert {subject for subject, found in told["changes"].items() if found} == set()
