"""Rules on MIL: their examples, and what the reports of others say must and must not be flagged."""

import re

import mil_text
import pytest

from topoc.dsl.diagnostic import Severity
from topoc.dsl.lint.engine import Options, Subjects, examine
from topoc.dsl.lint.rules import MIL, rule
from topoc.dsl.lint.subject import Mil
from topoc.dsl.model import Target

UNSHOWN = {"chunk.too-many-ops"}  # its example would have thousands of lines
SHOWN = [code for code in MIL if code not in UNSHOWN]
each = pytest.mark.parametrize("code", SHOWN)


def found(text, *, target=None, ignore=()):
    """The findings of all rules in a text."""
    subject = Mil(mil_text.package(text), *([target] if target else []))
    return examine(Subjects(packages=(subject,)), Options(ignore=tuple(ignore))).findings


def codes(text, **options):
    return {one.code for one in found(text, **options)}


@each
def test_flags_its_bad_example_and_says_where_and_what_to_do(code):
    flagged = [one for one in found(rule(code).bad_mil) if one.code == code]
    assert flagged
    assert max(one.severity for one in flagged) <= rule(code).severity
    for one in flagged:
        assert re.match(r"[a-z`\d]", one.message)
        assert not one.message.endswith(".")
        assert len(one.message) <= 100, one.message
        assert "invalid" not in one.message
        assert one.help
        assert not one.help.endswith(".")
        assert one.at.at.file == "example.mlpackage"
        assert one.at.at.part.startswith("main") or code == "chunk.too-heavy"


@each
def test_spares_its_good_example(code):
    assert code not in codes(rule(code).good_mil)


@each
def test_its_good_example_has_no_errors_at_all(code):
    """But for a state, which its author has to allow."""
    others = found(rule(code).good_mil, ignore=["state.update"])
    assert [one for one in others if one.severity is Severity.ERROR] == []


@each
def test_rules_of_placement_are_silent_where_the_neural_engine_is_not_meant(code):
    flagged = code in codes(rule(code).bad_mil, target=Target(unit="gpu"))
    assert flagged is not rule(code).placement


@pytest.mark.parametrize("code", MIL)
def test_says_what_to_do_and_what_was_seen(code):
    kind = rule(code)
    assert kind.remedy.endswith(".")
    assert kind.evidence


def test_every_rule_spares_an_empty_program():
    assert found("main(x: fp16[1,64]) {\n y: fp16[1,64] = exp(x=x)\n return y\n}") == ()
