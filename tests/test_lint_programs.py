"""The programs of a topology under lint: by --mil, and in every compile."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from topoc.dsl.cli import main
from topoc.dsl.diagnostic import Place, TopocError, error
from topoc.dsl.lint.engine import Options
from topoc.dsl.lint.rules import rule
from topoc.dsl.load import load
from topoc.lowering.cli.lint import of_programs
from topoc.lowering.lint.programs import emitted

TINY = Path(__file__).parent.parent / "examples" / "conformance" / "tiny.topo"


def topoc(*arguments):
    done = CliRunner().invoke(main, [str(one) for one in arguments])
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise done.exception
    return done.exit_code, done.stdout, done.stderr


@pytest.fixture
def accused(monkeypatch):
    """A rule that finds fault with every program; ours give it no reason to."""

    def check(self, subject):
        for function in subject.package.functions:
            op = function.compute[0]
            place = subject.package.place(function, op)
            yield self.flag(place, "something is wrong", chunk=subject.chunk, help="mend it")

    monkeypatch.setattr(rule("op.scatter"), "_check_mil", check)


def findings(*arguments):
    status, out, _ = topoc("lint", *arguments, "--format", "json")
    return status, {(one["severity"], one["code"]) for one in json.loads(out)["findings"]}


def test_lint_builds_programs_when_asked_to():
    assert ("note", "numeric.subnormal-eps") not in findings(TINY)[1]
    status, found = findings(TINY, "--mil")
    assert status == 0
    assert ("note", "numeric.subnormal-eps") in found
    assert {severity for severity, _ in found} == {"note"}


def test_both_programs_of_a_chunk_are_told_of_once_and_each_chunk_is(accused):
    topology, _ = load(TINY)
    report = of_programs(topology, Options(select=("op.scatter",)))
    assert [one.at.at.text for one in report.findings] == ["L0", "L1"]
    assert [one.related[0].at.file for one in report.findings] == [
        "first.mlpackage",
        "second.mlpackage",
    ]


def test_a_compile_stops_at_errors_in_programs_unless_they_are_allowed(accused, tmp_path):
    given = ["compile", TINY, "--weights", "random:1", "-o", tmp_path / "bundle"]
    status, _, err = topoc(*given)
    assert status == 1
    assert "error[op.scatter]: something is wrong" in err
    assert not (tmp_path / "bundle").exists()
    status, _, _ = topoc(*given, "--allow", "op.scatter=an example")
    assert status == 0
    manifest = json.loads((tmp_path / "bundle" / "manifest.json").read_text())
    assert {"code": "op.scatter", "reason": "an example"} in manifest["lint"]["allowed"]
    # What was allowed is not told of the bundle again, and anything else would be.
    assert findings(tmp_path / "bundle") == (0, set())


def test_what_a_text_allows_is_allowed_in_its_programs(accused, tmp_path):
    text = TINY.read_text().replace("  context", '  allow op.scatter because "x"\n  context', 1)
    path = tmp_path / "tiny.topo"
    path.write_text(text.replace('"config.json"', f'"{TINY.parent / "config.json"}"'))
    assert ("error", "op.scatter") not in findings(path, "--mil")[1]


def test_what_has_no_lowering_is_linted_as_a_text_and_the_reason_is_told(monkeypatch):
    refused = error("tap.not-lowered", "`tap` exports no hidden state yet", Place("here"))
    monkeypatch.setattr("topoc.lowering.refuse.refusals", lambda _: [refused])
    topology, _ = load(TINY)
    with pytest.raises(TopocError, match="exports no hidden state yet"):
        of_programs(topology, Options())
    status, out, _ = topoc("lint", TINY, "--mil")
    assert status == 0
    assert "programs, and `tap` exports no hidden state yet" in out


def test_the_views_of_our_programs_have_every_op_and_no_weight():
    topology, _ = load(TINY)
    first, second = emitted(topology)
    assert (first.subject.chunk, second.subject.chunk) == ("first", "second")
    assert [one.name for one in first.subject.package.functions] == ["decode", "prefill_3"]
    stored = {
        op.value.stored
        for function in first.subject.package.functions
        for op in function.ops
        if op.value is not None and op.value.stored
    }
    assert stored
