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

GOLDEN = Path(__file__).parent / "golden" / "lint"
CASES = sorted(GOLDEN.glob("*.topo"))
MESSAGE = re.compile(r"^(?:error|warning|note)\[\S+\]: (.*)$", re.MULTILINE)


def layers(path):
    if path.name == "nowhere.json":
        raise FileNotFoundError(2, "No such file or directory", str(path))
    return table(path)


@pytest.fixture
def run(monkeypatch):
    """Run a command line beside the golden files; its output and exit status as one text."""
    monkeypatch.chdir(GOLDEN)
    monkeypatch.setattr(topoc.dsl.resolve, "_reader", lambda: layers)

    def command(line):
        result = CliRunner().invoke(main, shlex.split(line))
        assert result.exception is None or isinstance(result.exception, SystemExit)
        assert not result.stderr
        return f"{result.stdout}exit {result.exit_code}\n"

    return command


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.stem)
def test_says_what_is_expected(case, run, golden):
    line = case.read_text("utf-8").partition("\n")[0].removeprefix("# topoc ")
    golden(case.with_suffix(".expect"), run(f"{line} {case.name}"))


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.stem)
def test_speaks_like_a_colleague(case):
    for message in MESSAGE.findall(case.with_suffix(".expect").read_text("utf-8")):
        assert not message[0].isupper() or re.match(r"L\d", message)
        assert not message.endswith(".")
        assert "invalid" not in message
        assert len(message) <= 100, message


def test_updating_is_refused_in_ci():
    command = [sys.executable, "-m", "pytest", "--update-golden", "--collect-only", __file__]
    result = subprocess.run(
        command, env={**os.environ, "CI": "1"}, capture_output=True, text=True, check=False
    )
    assert result.returncode == pytest.ExitCode.USAGE_ERROR
    assert "CI must not do" in result.stderr
