"""What every lint rule owes its readers, asked of all rules alike."""

import re
from pathlib import Path

import pytest
from topo_text import codes, linted, resolved

import topoc.dsl
from topoc.dsl.diagnostic import Severity
from topoc.dsl.lint.engine import lint
from topoc.dsl.lint.kinds import KINDS
from topoc.dsl.lint.lessons import STAGES
from topoc.dsl.lint.rule import Rule, Trust
from topoc.dsl.lint.rules import every

DSL = Path(topoc.dsl.__file__).parent
ALL_RULES = tuple(every())
RULES = DSL / "lint" / "rules"
each = pytest.mark.parametrize("rule", ALL_RULES, ids=lambda rule: rule.code)


@each
def test_flags_its_bad_example(rule):
    found = [one for one in linted(rule.bad) if one.code == rule.code]
    assert found
    assert all(one.at.at.text for one in found)


@each
def test_spares_its_good_example(rule):
    assert rule.code not in codes(linted(rule.good))


@each
def test_its_good_example_has_no_errors_at_all(rule):
    assert not [one for one in linted(rule.good) if one.severity is Severity.ERROR]


@each
def test_lives_at_its_code(rule):
    family, _, name = rule.code.partition(".")
    assert (RULES / family / f"{name.replace('-', '_')}.py").is_file()
    assert rule.__name__ == "".join(word.capitalize() for word in name.split("-"))


@each
def test_says_why(rule):
    assert rule.__doc__.count("\n\n") >= 1
    assert rule.evidence or not rule.placement
    for evidence in rule.evidence:
        assert evidence.what
        assert evidence.source
        assert re.fullmatch(r"\d{4}-\d{2}(-\d{2})?", evidence.date)


@each
def test_speaks_like_a_colleague(rule):
    for finding in linted(rule.bad):
        assert re.match(r"[a-z`L\d]", finding.message)
        assert not finding.message.endswith(".")
        assert len(finding.message) <= 100
        assert "invalid" not in finding.message
        assert finding.help


@each
def test_what_no_bundle_can_do_can_not_be_allowed_and_the_rest_can(rule):
    topology, _ = resolved(rule.bad.replace("{\n", f'{{\n  allow {rule.code} because "x"\n', 1))
    found = codes(lint(topology))
    assert (rule.code in found) is rule.coherence
    assert ("allow.not-allowable" in found) is rule.coherence


def test_every_rule_file_is_in_the_table():
    files = {path for path in RULES.glob("*/*.py") if path.name != "__init__.py"}
    assert len(files) == len(ALL_RULES) == len({rule.code for rule in ALL_RULES})


def test_contested_evidence_alone_makes_no_error():
    for rule in ALL_RULES:
        trusts = {evidence.trust for evidence in rule.evidence}
        if trusts == {Trust.CONTESTED}:
            assert rule.severity < Severity.ERROR


def test_every_code_in_the_sources_is_a_kind_or_a_rule():
    known = {*KINDS, *STAGES, *(rule.code for rule in ALL_RULES)}
    pattern = re.compile(
        r'(?:error|warning|unknown|_refusal|return)\(?\s*\(?\s*"([a-z]+\.[a-z-]+)"'
    )
    for path in DSL.rglob("*.py"):
        for code in pattern.findall(path.read_text("utf-8")):
            assert code in known, (path, code)


def test_a_rule_outside_the_folder_has_no_code():
    class Stray(Rule):
        """A rule of a test."""

    assert not hasattr(Stray, "code")
