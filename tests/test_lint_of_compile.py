"""A compile stops at what lint finds, and the manifest tells what ran and what was accepted."""

import json
import shutil
from pathlib import Path

import pytest
from click.testing import CliRunner

from topoc.dsl.cli import main
from topoc.dsl.diagnostic import TopocError
from topoc.dsl.lint.rules import CHECKPOINT, MIL, TOPOLOGY
from topoc.lowering.lint.streams import streams_checked
from topoc.lowering.manifest import Allowed, Lint
from topoc.lowering.rescale import Range, Scales, Swing

EXAMPLE = Path(__file__).parent.parent / "examples" / "conformance"
VERDICT = 'because "b"\n figure "1 ms"\n under "u"\n revisit "r"'


@pytest.fixture
def compile_(tmp_path, monkeypatch):
    """Compile the example with more statements; status, stderr and the manifest."""
    monkeypatch.chdir(tmp_path)
    shutil.copy(EXAMPLE / "config.json", tmp_path)
    shutil.copy(EXAMPLE / "tiny.topo", tmp_path / "tiny.topo")

    def run(body, *options, name="mine.topo"):
        text = f"topology mine extends tiny {{\n{body}\n}}\n"
        Path(name).write_text(text, "utf-8")
        arguments = ["compile", name, "--weights", "random:1", "-o", "b", *options]
        done = CliRunner().invoke(main, arguments)
        assert done.exception is None or isinstance(done.exception, SystemExit)
        file = Path("b") / "manifest.json"
        return done.exit_code, done.stderr, json.loads(file.read_text()) if file.exists() else None

    return run


def test_the_manifest_lists_what_ran_and_what_was_allowed(compile_):
    body = 'allow op.argmax-tail because "the phone has time"'
    status, _, manifest = compile_(body)
    assert status == 0
    assert manifest["lint"]["ran"] == sorted({*TOPOLOGY, *MIL, *CHECKPOINT})
    allowed = [{"code": "op.argmax-tail", "reason": "the phone has time"}]
    assert manifest["lint"]["allowed"] == allowed
    assert manifest["lint"]["warned"] == []


def test_warnings_that_stood_are_kept_by_their_codes(compile_):
    status, err, manifest = compile_("attention { sliding: sliding(window = 2) }")
    assert status == 0
    assert "warning[lossy.narrowed-attention]" in err
    assert manifest["lint"]["warned"] == ["lossy.narrowed-attention"]


def test_errors_of_placement_stop_until_they_are_allowed(compile_):
    states = "kv { all: store state, write slice }\n functions decode"
    status, err, manifest = compile_(states)
    assert (status, manifest) == (1, None)
    assert "error[state.update]" in err
    status, err, manifest = compile_(states, "--allow", "state.update=it ran here")
    assert "error[state.update]" not in err
    assert status == 0
    assert {one["code"] for one in manifest["lint"]["allowed"]} == {"state.update"}


def test_a_verdict_of_a_neighbour_stops_until_there_is_new_evidence(compile_):
    Path("old.topo").write_text(
        f"topology old extends tiny {{\n status rejected {{ {VERDICT} }}\n}}\n"
    )
    status, err, manifest = compile_("")
    assert (status, manifest) == (1, None)
    assert "`mine` builds the programs of `old`, which is rejected" in err
    status, _, manifest = compile_("", "--revisit", "a new system")
    assert status == 0
    assert manifest["revisit"] == "a new system"


def swing(peak):
    return Range(stream=Swing(peak=peak, least=1.0), left=peak)


def checked(peak, scale=1.0, lint=None):
    ranges, scales = (swing(1.0), swing(peak)), Scales(residual=(scale, scale))
    return streams_checked(lint or Lint(ran=("a.b",)), Path("w"), ranges, scales)


def test_a_stream_that_fp16_can_not_hold_stops_a_compile():
    with pytest.raises(TopocError, match=r"numeric.residual-overflow.*100,000 before layer 1"):
        checked(100_000.0)
    assert checked(100_000.0, 1 / 512).warned == ()
    assert checked(40_000.0).warned == ("numeric.residual-overflow",)
    assert checked(100.0).ran == tuple(sorted({"a.b", *CHECKPOINT}))


def test_a_stream_that_was_accepted_does_not():
    allowed = (Allowed(code="numeric.residual-overflow", reason="x"),)
    assert checked(100_000.0, lint=Lint(allowed=allowed)).warned == ()
