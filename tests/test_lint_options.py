"""The options of `topoc lint`, and the lines that it ends in."""

import json
import re

import pytest
from click.testing import CliRunner
from topo_text import gemma3, table

import topoc.dsl.resolve
from topoc.dsl.cli import main
from topoc.dsl.lint.rules import CHECKPOINT, CODES, MIL, TOPOLOGY

STATES = gemma3(
    "kv { all: store state }", name="states", chunks="chunk a = L0-17 + norm + head(argmax)"
)


@pytest.fixture
def lint(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(topoc.dsl.resolve, "_reader", lambda: table)
    (tmp_path / "states.topo").write_text(STATES)

    def run(*options, file="states.topo"):
        result = CliRunner().invoke(main, ["lint", file, *options])
        assert result.exception is None or isinstance(result.exception, SystemExit)
        return result

    return run


def found(result):
    return set(re.findall(r"^\w+\[(\S+)\]", result.stdout, re.MULTILINE))


ALL = {
    "state.update",
    "state.unlike-pair",
    "chunk.too-many-layers",
    "op.argmax-tail",
    "numeric.wide-vocabulary-tie",
}


def test_all_rules_run_unless_some_are_chosen(lint):
    assert found(lint()) == ALL


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (["--select", "state"], {"state.update", "state.unlike-pair"}),
        (["--select", "state.update"], {"state.update"}),
        (["--select", "state.update,op"], {"state.update", "op.argmax-tail"}),
        (
            ["--select", "state", "--select", "op"],
            ALL - {"chunk.too-many-layers"} - {"numeric.wide-vocabulary-tie"},
        ),
        (["--ignore", "state"], ALL - {"state.update", "state.unlike-pair"}),
        (["--select", "state", "--ignore", "state.update"], {"state.unlike-pair"}),
        (["--select", "kv"], set()),
        (["--target", "gpu"], set()),
        (["--target", "ane macos15 m4"], ALL - {"chunk.too-many-layers"}),
        (["--target", "m4"], ALL - {"chunk.too-many-layers"}),
    ],
)
def test_rules_are_chosen_by_code_or_family_and_judged_for_a_target(lint, options, expected):
    assert found(lint(*options)) == expected


@pytest.mark.parametrize(
    ("options", "hint"),
    [
        (["--select", "state.updat"], "did you mean `state.update`"),
        (["--ignore", "sate"], "did you mean `state`"),
        (["--target", "ane ios81"], "'ios81' is no unit, system or chip"),
        (["--target", "a91"], "did you mean"),
        (["--target", ""], "a target is a unit, a system, a chip"),
        (["--fail-on", "hint"], "note"),
    ],
)
def test_what_is_misspelled_is_refused(lint, options, hint):
    result = lint(*options)
    assert result.exit_code == 2
    assert hint in result.output


@pytest.mark.parametrize(
    ("options", "status"),
    [
        ([], 1),
        (["--ignore", "state.update"], 0),
        (["--ignore", "state.update", "--fail-on", "warning"], 1),
        (["--ignore", "state", "--fail-on", "warning"], 0),
        (["--ignore", "state", "--fail-on", "note"], 1),
        (["--target", "gpu", "--fail-on", "note"], 0),
    ],
)
def test_the_mildest_finding_that_fails_is_chosen(lint, options, status):
    assert lint(*options).exit_code == status


def test_an_allowance_is_not_unused_because_its_rule_did_not_run(lint, tmp_path):
    text = STATES.replace("context 2048", 'context 2048\n allow state.update because "x"')
    (tmp_path / "states.topo").write_text(text)
    assert "allow.unused" not in found(lint("--ignore", "state"))
    assert "allow.unused" in found(lint("--target", "gpu"))


def test_it_ends_with_what_ran_what_could_not_and_what_nobody_knows(lint):
    *_, files, rules, unknown, unproven = lint().stdout.splitlines()
    assert files == "1 file: 1 error, 1 warning, 3 notes"
    programs = len(set(MIL) - set(TOPOLOGY))
    weights = len(set(CHECKPOINT) - set(TOPOLOGY) - set(MIL))
    assert rules == (
        f"rules: {len(TOPOLOGY)} ran, {programs + weights} could not: {programs} want programs"
        f" (--mil builds them), {weights} want weights (`topoc compile` has them)"
    )
    assert unknown.startswith("unknown of a17: every limit: no source measured one on this chip")
    assert unproven == "this does not prove placement, speed or accuracy, which take a device"


def test_what_was_not_chosen_is_not_missed(lint):
    (line,) = (one for one in lint("--select", "state").stdout.splitlines() if "rules:" in one)
    states = {code for code in CODES if code.startswith("state.")}
    both = states & set(TOPOLOGY)
    assert line.startswith(f"rules: {len(both)} ran")
    if states == both:
        assert "could not" not in line


def test_programs_that_can_not_be_built_are_missed_with_the_reason(lint, tmp_path):
    assert "programs, and the text has errors" in lint("--mil").stdout
    more = 'context 2048\n allow state.update because "x"\n quantize { embed: palettize(bits = 4) }'
    allowed = STATES.replace("context 2048", more)
    (tmp_path / "states.topo").write_text(allowed)
    assert re.search(r"want programs, and .* is not lowered yet", lint("--mil").stdout)


def test_documents_hold_findings_and_nothing_else(lint):
    result = lint("--format", "json")
    assert {one["code"] for one in json.loads(result.stdout)["findings"]} == ALL
    assert "rules:" not in lint("--format", "github").stdout
