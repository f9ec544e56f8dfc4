"""Findings as code hosts and programs read them."""

import json
import re
from importlib.resources import files
from pathlib import Path

import pytest
from attrs import evolve
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st
from jsonschema import Draft202012Validator
from sarif_kit.validate import validation_errors
from topo_text import gemma3, table

import topoc.dsl.resolve
from topoc.dsl.cli import main
from topoc.dsl.diagnostic import Diagnostic, Edit, Label, Place, Severity, error
from topoc.dsl.lint.rules import TOPOLOGY, rule
from topoc.dsl.render import as_github, as_json, as_sarif
from topoc.dsl.source import Source, Span

GOLDEN = Path(__file__).parent / "golden" / "render"
SOURCE = Source("a/t.topo", "topology t {\n  chunk b = L0-7\n}\n")
FINDINGS_SCHEMA = json.loads(
    files("topoc.dsl").joinpath("schema", "findings.json").read_text("utf-8")
)
WRONG = gemma3("contxt 5\ntap L90\nkv { slidng: own }")


def span(words, source=SOURCE):
    start = source.text.index(words)
    return Span(source, start, start + len(words))


FULL = Diagnostic(
    "chunk.gap",
    Severity.WARNING,
    "L8 is in no chunk",
    Label(span("L0-7"), "ends too early"),
    (Label(Place("config.json", "num_hidden_layers")), Label(span("topology"), "here")),
    "add L8",
    fix=(Edit(span("L0-7"), "L0-8"), Edit(span("b"), "body")),
)


@pytest.fixture
def topoc_(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(topoc.dsl.resolve, "_reader", lambda: table)

    def run(*arguments, stdin=None):
        result = CliRunner().invoke(main, arguments, input=stdin)
        assert result.exception is None or isinstance(result.exception, SystemExit), result
        return result

    return run


def sarif(*findings):
    log = json.loads(as_sarif(findings, "0.1.0", lambda code: f"About {code}."))
    assert validation_errors(log) == []
    return log["runs"][0]


# --- SARIF


def test_a_sarif_log_has_everything_of_a_finding():
    (result,) = sarif(FULL)["results"]
    assert (result["ruleId"], result["level"]) == ("chunk.gap", "warning")
    assert result["message"]["text"] == "L8 is in no chunk\nhelp: add L8"
    (place,) = result["locations"]
    assert place["physicalLocation"] == {
        "artifactLocation": {"uri": "a/t.topo"},
        "region": {"startLine": 2, "startColumn": 13, "endLine": 2, "endColumn": 17},
    }
    assert place["message"]["text"] == "ends too early"
    config, here = result["relatedLocations"]
    assert config["logicalLocations"] == [{"fullyQualifiedName": "num_hidden_layers"}]
    assert (config["id"], here["id"], here["message"]["text"]) == (0, 1, "here")
    (change,) = result["fixes"][0]["artifactChanges"]
    assert [one["insertedContent"]["text"] for one in change["replacements"]] == ["L0-8", "body"]


def test_results_point_at_their_rules():
    other = error("kv.unknown", "m", span("b"))
    run = sarif(FULL, other, FULL)
    assert [one["id"] for one in run["tool"]["driver"]["rules"]] == ["chunk.gap", "kv.unknown"]
    assert [one["ruleIndex"] for one in run["results"]] == [0, 1, 0]
    assert run["tool"]["driver"]["rules"][0]["shortDescription"]["text"] == "About chunk.gap."


def test_no_findings_are_a_log_too():
    assert sarif()["results"] == []


def test_columns_count_characters_as_the_log_says():
    source = Source("t.topo", 'doc "\U0001f600" x')
    run = sarif(error("x.y", "m", span("x", source)))
    assert run["columnKind"] == "unicodeCodePoints"
    region = run["results"][0]["locations"][0]["physicalLocation"]["region"]
    assert region["startColumn"] == 9


@pytest.mark.parametrize(
    ("name", "uri"),
    [
        ("<stdin>", "%3Cstdin%3E"),
        ("a b/ü.topo", "a%20b/%C3%BC.topo"),
        ("/elsewhere/t.topo", "file:///elsewhere/t.topo"),
        ("{here}/sub/t.topo", "sub/t.topo"),
    ],
)
def test_files_are_uris_from_the_working_folder(name, uri, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    source = Source(name.format(here=tmp_path), "x")
    (result,) = sarif(error("x.y", "m", span("x", source)))["results"]
    assert result["locations"][0]["physicalLocation"]["artifactLocation"] == {"uri": uri}


@pytest.mark.parametrize(
    "breaking",
    [
        {"version": "2.0.0"},
        {"runs": [{"results": []}]},
        {"runs": [{"tool": {"driver": {"name": "x"}}, "results": [{"level": "error"}]}]},
    ],
)
def test_the_schema_refuses_what_is_no_log(breaking):
    log = json.loads(as_sarif([FULL], "0.1.0", str))
    assert validation_errors(log | breaking)


def test_lint_writes_one_valid_log(topoc_):
    result = topoc_("lint", "-", "nowhere/x.topo", "--format", "sarif", stdin=WRONG)
    assert result.exit_code == 2
    log = json.loads(result.stdout)
    assert validation_errors(log) == []
    run = log["runs"][0]
    assert {one["ruleId"] for one in run["results"]} >= {"syntax.statement", "name.unknown"}
    rules = {one["id"]: one["shortDescription"]["text"] for one in run["tool"]["driver"]["rules"]}
    assert rules["syntax.statement"].startswith("A line begins with a word")


@pytest.mark.parametrize("code", TOPOLOGY)
def test_every_rule_gives_a_valid_log_and_document(code, topoc_):
    bad = rule(code).bad
    log = json.loads(topoc_("lint", "-", "--format", "sarif", stdin=bad).stdout)
    assert validation_errors(log) == []
    assert code in {one["ruleId"] for one in log["runs"][0]["results"]}
    document = json.loads(topoc_("lint", "-", "--format", "json", stdin=bad).stdout)
    Draft202012Validator(FINDINGS_SCHEMA).validate(document)


# --- GitHub


def test_an_annotation_names_file_line_and_column():
    assert as_github([FULL]) == (
        "::warning file=a/t.topo,line=2,col=13,endLine=2,endColumn=17,title=chunk.gap"
        "::L8 is in no chunk%0Ahelp: add L8"
    )


def test_a_note_is_a_notice_and_a_place_has_no_line():
    note = Diagnostic("x.y", Severity.NOTE, "m", Label(Place("config.json", "layers")))
    assert as_github([note]) == "::notice file=config.json,title=x.y::m%0Aat layers"


def test_a_span_over_lines_has_no_end_column():
    whole = error("x.y", "m", Span(SOURCE, 0, len(SOURCE.text)))
    assert as_github([whole]) == "::error file=a/t.topo,line=1,col=1,endLine=4,title=x.y::m"


def test_what_would_end_a_command_is_escaped():
    source = Source("a,b:c%.topo", "x")
    finding = error("x.y", "50 %: a,b\r\n::error::c", span("x", source), help="%0A")
    assert as_github([finding]) == (
        "::error file=a%2Cb%3Ac%25.topo,line=1,col=1,endLine=1,endColumn=2,title=x.y"
        "::50 %25: a,b%0D%0A::error::c%0Ahelp: %250A"
    )


@given(st.text(), st.text(min_size=1))
def test_any_words_stay_in_one_command_and_come_back(message, name):
    text = as_github([error("x.y", message, Place(name.replace("/", "_")))])
    assert not re.search(r"[\r\n]", text)
    fields, _, data = text.removeprefix("::error ").partition("::")
    assert fields.count(",") == 1
    for code, char in (("%0D", "\r"), ("%0A", "\n"), ("%25", "%")):
        data = data.replace(code, char)
    assert data == message


def test_lint_writes_one_command_a_finding_and_nothing_else(topoc_, golden):
    Path("t.topo").write_text(WRONG)
    result = topoc_("lint", "t.topo", "--format", "github")
    assert result.exit_code == 1
    golden(GOLDEN / "github.expect", result.stdout)
    Path("t.topo").write_text(
        gemma3(chunks="chunk a = L0-8\nchunk b = L9-17 + norm + head(logits)")
    )
    clean = topoc_("lint", "t.topo", "--format", "github")
    assert (clean.exit_code, clean.stdout) == (0, "")


# --- JSON


def test_json_fits_its_schema():
    validator = Draft202012Validator(FINDINGS_SCHEMA)
    validator.check_schema(FINDINGS_SCHEMA)
    document = json.loads(as_json([FULL, evolve(FULL, fix=(), help="")]))
    validator.validate(document)
    for change in (
        {"severity": "fatal"},
        {"code": "X"},
        {"more": 1},
        {"at": {"file": "t.topo", "line": 0, "column": 1, "words": ""}},
    ):
        wrong = {"findings": [document["findings"][0] | change]}
        assert list(validator.iter_errors(wrong)), change
    for key in document["findings"][0]:
        wrong = {"findings": [{k: v for k, v in document["findings"][0].items() if k != key}]}
        assert list(validator.iter_errors(wrong)), key
