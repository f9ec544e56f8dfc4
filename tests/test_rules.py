"""What every lint rule owes its readers, asked of all rules alike."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
from topo_text import codes, linted, resolved

import topoc.dsl
from topoc.dsl.diagnostic import Place, Severity
from topoc.dsl.lint.engine import lint
from topoc.dsl.lint.kinds import KINDS
from topoc.dsl.lint.lessons import STAGES
from topoc.dsl.lint.rule import Rule, Trust
from topoc.dsl.lint.rules import CHECKPOINT, CODES, MIL, TOPOLOGY, every, rule

DSL = Path(topoc.dsl.__file__).parent
ALL_RULES = tuple(every())
RULES = DSL / "lint" / "rules"
each = pytest.mark.parametrize("rule", ALL_RULES, ids=lambda rule: rule.code)
on_topologies = pytest.mark.parametrize("rule", [*map(rule, TOPOLOGY)], ids=lambda rule: rule.code)
# What the author wrote into the file itself, a verdict or a budget, is the evidence of these.
RECORDS = {"ledger.revived-verdict", "ledger.stale-verdict", "expect.breach"}
LOOKS = {"_check": TOPOLOGY, "_check_mil": MIL, "_check_checkpoint": CHECKPOINT}


@on_topologies
def test_flags_its_bad_example(rule):
    found = [one for one in linted(rule.bad) if one.code == rule.code]
    assert found
    assert all(one.at.at.text for one in found)


@on_topologies
def test_spares_its_good_example(rule):
    assert rule.code not in codes(linted(rule.good))


@on_topologies
def test_its_good_example_has_no_errors_at_all(rule):
    assert not [one for one in linted(rule.good) if one.severity is Severity.ERROR]


@each
def test_lives_at_its_code(rule):
    family, _, name = rule.code.partition(".")
    assert (RULES / family / f"{name.replace('-', '_')}.py").is_file()
    assert rule.__name__ == "".join(word.capitalize() for word in name.split("-"))


@each
def test_looks_at_the_subjects_that_it_is_listed_under(rule):
    for method, codes_ in LOOKS.items():
        assert (method in vars(rule)) == (rule.code in codes_), method


@each
def test_says_why(rule):
    assert rule.__doc__.count("\n\n") >= 1
    assert not rule.__doc__.splitlines()[0].startswith(" ")
    for evidence in rule.evidence:
        assert evidence.what
        assert evidence.source
        assert re.fullmatch(r"\d{4}-\d{2}(-\d{2})?", evidence.date)


@each
def test_has_evidence_and_what_can_be_allowed_a_remedy(rule):
    assert bool(rule.evidence) is (rule.code not in RECORDS)
    if not rule.coherence and rule.code not in RECORDS:
        assert re.fullmatch(r"[A-Z`][^\n]{10,110}\.", rule.remedy)


@each
def test_contested_evidence_never_makes_an_error(rule):
    """The user's own verdict on `state.update` is stricter than the evidence."""
    contested = any(one.trust is Trust.CONTESTED for one in rule.evidence)
    if contested and rule.code != "state.update":
        assert rule.severity < Severity.ERROR


def test_a_rule_can_not_be_graver_than_it_says():
    kind = rule("state.unlike-pair")
    with pytest.raises(AssertionError, match="never as grave as error"):
        kind().flag(Place("x"), "words", severity=Severity.ERROR)


@on_topologies
def test_speaks_like_a_colleague(rule):
    for finding in linted(rule.bad):
        assert re.match(r"[a-z`L\d]", finding.message)
        assert not finding.message.endswith(".")
        assert len(finding.message) <= 100
        assert "invalid" not in finding.message
        assert finding.help


@on_topologies
def test_what_no_bundle_can_do_can_not_be_allowed_and_the_rest_can(rule):
    topology, _ = resolved(rule.bad.replace("{\n", f'{{\n  allow {rule.code} because "x"\n', 1))
    found = codes(lint(topology))
    assert (rule.code in found) is rule.coherence
    assert ("allow.not-allowable" in found) is rule.coherence


def test_every_rule_file_is_in_the_table():
    paths = (path for path in RULES.glob("*/*.py") if path.name != "__init__.py")
    assert {f"{path.parent.name}.{path.stem.replace('_', '-')}" for path in paths} == set(CODES)


def test_every_code_in_the_sources_is_a_kind_or_a_rule():
    known = {*KINDS, *STAGES, *CODES}
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


def test_rules_on_a_text_load_no_views_of_programs():
    """`topoc lint x.topo` pays at its start for what it uses."""
    code = (
        "import sys\n"
        "from topoc.dsl.lint.rules import TOPOLOGY, rule\n"
        "for one in TOPOLOGY: rule(one)\n"
        "print(*sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    views = {f"topoc.dsl.lint.{one}" for one in ("at_ops", "mil", "trace", "weights")}
    assert not views & set(done.stdout.split())
