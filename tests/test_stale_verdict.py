"""Verdicts under an older coremltools than the one in use, and what is left alone."""

import tomllib
from importlib.metadata import version
from pathlib import Path

import pytest
from topo_text import gemma3, linted

from topoc.dsl.lint.rules.ledger.stale_verdict import StaleVerdict
from topoc.dsl.targets.toolchain import COREMLTOOLS

ROOT = Path(__file__).parent.parent


def verdict(under, *, state="rejected", more=""):
    lines = f'because "it was slower"\n figure "31 tok/s"\n under "{under}"\n revisit "x"\n {more}'
    return gemma3(f"status {state} on 2026-04-17 {{\n {lines}\n}}")


def stale(text):
    return [one for one in linted(text) if one.code == StaleVerdict.code]


@pytest.mark.parametrize(
    ("under", "named"),
    {
        "coremltools 8.3": "8.3",
        "iOS 18, coremltools 8.3, A17": "8.3",
        "Coremltools==8.3.0.": "8.3.0",
        "coremltools 8": "8",
        "coremltools 8.10": "8.10",
        "coremltools 7.2 and 8.1": "8.1",
        "coremltools 8.0/8.3, iOS 18": "8.3",
        "coremltools 7.2 on iOS 17, coremltools 8.1 on iOS 18": "8.1",
    }.items(),
)
def test_flags_an_older_coremltools(under, named):
    (found,) = stale(verdict(under))
    assert found.message == (
        f"`t` was rejected under coremltools {named}, and {COREMLTOOLS} is in use"
    )
    assert found.at.at.text == f'under "{under}"'


@pytest.mark.parametrize(
    "under",
    [
        f"coremltools {COREMLTOOLS}",
        "coremltools 9",
        "coremltools 9.0.1",
        "coremltools 10.0",
        "coremltools 8.3 and 9.0",
        "coremltools 8.3 to 9.0, A17",
        "coremltools 8.3, coremltools 9.0",
        "coremltools >= 8.0",  # which ones is not said
        "coremltools 8.0+",
        "coremltools 8.0b1",
        f"coremltools {'8' * 5000}",
        "coremltools",
        "mycoremltools 8.0",
        "iOS 17",
        "iOS 18, Xcode 16.3",
        "Gemma 4 E2B",
    ],
)
def test_leaves_alone_what_is_not_older_or_can_not_be_compared(under):
    assert not stale(verdict(under))


@pytest.mark.parametrize("state", ["shelved", "rejected", "abandoned"])
def test_every_verdict_against_an_idea_counts(state):
    assert stale(verdict("coremltools 8.3", state=state))


@pytest.mark.parametrize("state", ["prototype", "shipping", "planned"])
def test_what_was_not_given_up_may_be_old(state):
    assert not stale(verdict("coremltools 8.3", state=state))


def test_a_verdict_that_was_taken_back_is_no_verdict():
    more = 'reopened "it runs"\n harness "bench"'
    assert not stale(verdict("coremltools 8.3", more=more))


def test_the_version_in_use_is_the_one_that_is_pinned():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    pinned = f"coremltools=={COREMLTOOLS}"
    assert pinned in project["dependencies"]
    assert pinned in (ROOT / "constraints.txt").read_text("utf-8").splitlines()
    assert version("coremltools") == COREMLTOOLS
