"""What `topoc show` prints compiles to the same bytes as what it was shown of."""

import shutil
from pathlib import Path

import pytest
from click.testing import CliRunner

from topoc.dsl.cli import main

EXAMPLE = Path(__file__).parents[1] / "examples" / "conformance"

# The example again, as an experiment over it with parameters, rules that override, and allowances.
DERIVED = """topology derived extends tiny {
  param  C = 16
  context C
  kv { L1: write shift }
  allow chunk.too-many-layers because "it has two"
  chunk both = L0-1 + norm + head(argmax)
  functions decode, prefill(tokens = 3)
  expect { chunks <= 1 }
}
"""


def topoc_(*arguments):
    result = CliRunner().invoke(main, [str(one) for one in arguments])
    assert result.exit_code == 0, result.output
    return result.stdout


def contents(folder):
    return {
        str(one.relative_to(folder)): one.read_bytes()
        for one in sorted(folder.rglob("*"))
        if one.is_file()
    }


@pytest.fixture
def checkout(tmp_path, monkeypatch):
    """A folder with the example's text and config, and one beside it."""
    monkeypatch.chdir(tmp_path)
    for name in ("tiny.topo", "config.json"):
        shutil.copy(EXAMPLE / name, tmp_path)
    (tmp_path / "derived.topo").write_text(DERIVED)
    (tmp_path / "elsewhere").mkdir()
    return tmp_path


@pytest.mark.parametrize("stem", ["tiny", "derived"])
def test_the_shown_text_compiles_to_the_same_bytes(checkout, stem):
    """The build id too: it is taken from the flattened text, in which no path is left."""
    other = checkout / "elsewhere" / "other.topo"
    topoc_("show", f"{stem}.topo", "-o", other)
    assert 'model "../config.json"' in other.read_text("utf-8")
    topoc_("compile", f"{stem}.topo", "--weights", "random:1", "-o", "first")
    topoc_("compile", other, "--weights", "random:1", "-o", "second")
    first, second = contents(checkout / "first"), contents(checkout / "second")
    assert list(first) == list(second)
    assert [name for name in first if first[name] != second[name]] == []
    assert any(name.endswith("weight.bin") for name in first)
    assert "manifest.json" in first


def test_what_is_shown_of_the_shown_text_is_the_same(checkout):
    assert checkout.is_dir()
    topoc_("show", "derived.topo", "-o", "other.topo")
    assert topoc_("show", "other.topo") == topoc_("show", "derived.topo")
