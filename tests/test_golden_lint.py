"""Files that are wrong, and every word that `topoc lint` says of them."""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner
from topo_text import table

import topoc.dsl.resolve
from topoc.dsl.cli import main
from topoc.dsl.lint.kinds import KINDS
from topoc.dsl.lint.rules import TOPOLOGY
from topoc.dsl.load import Loader
from topoc.dsl.resolve import Given

GOLDEN = Path(__file__).parent / "golden" / "lint"
CASES = sorted(GOLDEN.glob("*.topo"))
CODE = re.compile(r"^(?:error|warning|note)\[(\S+)\]: (.*)$", re.MULTILINE)


def layers(path):
    if path.name == "nowhere.json":
        raise FileNotFoundError(2, "No such file or directory", str(path))
    return table(path)


def counted(text):
    """A text without the numbers of rules, which every new one would change."""
    head, rules, rest = text.partition("\nrules: ")
    line, end, rest = rest.partition("\n")
    return head + rules + re.sub(r"\b\d+ (ran|could|want)", r"N \1", line) + end + rest


@pytest.fixture
def run(monkeypatch):
    """Run a command line beside the golden files; its output and exit status as one text."""
    monkeypatch.chdir(GOLDEN)
    monkeypatch.setattr(topoc.dsl.resolve, "_reader", lambda: layers)

    def command(line):
        result = CliRunner().invoke(main, shlex.split(line))
        assert result.exception is None or isinstance(result.exception, SystemExit)
        assert not (line.startswith("lint") and result.stderr)
        return f"{counted(result.stdout)}{result.stderr}exit {result.exit_code}\n"

    return command


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.stem)
def test_says_what_is_expected(case, run, golden):
    line = case.read_text("utf-8").partition("\n")[0].removeprefix("# topoc ")
    golden(case.with_suffix(".expect"), run(f"{line} {case.name}"))


@pytest.fixture
def findings(monkeypatch):
    """All that a golden file's topologies give, as data, also as a command would choose one."""
    monkeypatch.chdir(GOLDEN)

    def of(case):
        loader = Loader(Given({}, None, layers))
        loaded = [*loader.all(case.name), loader.one(case.name, None)]
        return [finding for one in loaded for finding in one.findings]

    return of


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.stem)
def test_speaks_like_a_colleague(case, findings):
    for finding in findings(case):
        message, words = finding.message, [one.words for one in (finding.at, *finding.related)]
        assert not message[0].isupper() or re.match(r"L\d", message), message
        assert not message.endswith("."), message
        assert "invalid" not in f"{message} {finding.help} {words}"
        assert "please" not in f"{message} {finding.help} {words}"
        assert len(message) <= 100, message
        assert not finding.help.endswith("."), finding.help
        assert finding.help or any(words), f"nothing says what to do: {message}"


def shown(case):
    """The codes and messages that a golden file shows."""
    return CODE.findall(case.with_suffix(".expect").read_text("utf-8"))


# Kinds that no text alone can raise, and why.
UNSHOWN = {"model.contradicts-checkpoint": "it takes weights of another model"}


@pytest.mark.parametrize("code", sorted({*KINDS, *TOPOLOGY}))
def test_every_kind_of_error_has_a_file_that_shows_it(code):
    found = [case for case in CASES if code in [known for known, _ in shown(case)]]
    assert bool(found) != (code in UNSHOWN)


def test_wrong_files_point_at_what_is_wrong():
    wrong = [case for case in CASES if shown(case)]
    assert len(wrong) >= 90
    for case in wrong:
        expect = case.with_suffix(".expect").read_text("utf-8")
        if "-D" not in case.read_text("utf-8").partition("\n")[0]:
            pointed = re.findall(r"^ +\| +\^+", expect, re.MULTILINE)
            assert len(pointed) >= len(shown(case)), case.stem


def test_every_error_of_a_file_is_reported():
    assert [code for code, _ in shown(GOLDEN / "three_errors.topo")] == [
        "selector.unknown",
        "kv.clause",
        "tap.unknown",
    ]


# What people write first, and what they are told of it.
FIRST_TRIES = {
    "only_one_chunk_line": "replace those of its base as a set; state them all",
    "two_rules_on_a_line": "two rules stand on one line",
    "en_dash": "write `L0-8`",
    "suffixed_number": "write `8192`",
    "number_with_separators": "write `8192`",
    "equals_after_a_keyword": "write `context 8192`",
    "positional_window": "write `windowed_full(window = 1024)`",
    "sliding_on_full": "full layers take `full`, `windowed_full` or `flash_tiled`",
    "state_over_an_inherited_shift": "write `all: write slice`",
    "definition_of_a_statement": "write `param C = …` and `context C` for it",
    "inherited_budget": "the budget is inherited; state `expect { layers per chunk <= … }`",
    "wiped_exceptions": "repeat the rule for `L0, L17 mlp` after this one to keep it",
}


@pytest.mark.parametrize("stem", FIRST_TRIES)
def test_a_first_try_is_met_with_its_own_words(stem):
    assert FIRST_TRIES[stem] in (GOLDEN / f"{stem}.expect").read_text("utf-8")


def test_each_file_that_is_expected_has_a_case():
    assert {one.stem for one in GOLDEN.glob("*.expect")} == {case.stem for case in CASES}


def test_updating_is_refused_in_ci():
    command = [sys.executable, "-m", "pytest", "--update-golden", "--collect-only", __file__]
    result = subprocess.run(
        command, env={**os.environ, "CI": "1"}, capture_output=True, text=True, check=False
    )
    assert result.returncode == pytest.ExitCode.USAGE_ERROR
    assert "CI must not do" in result.stderr
