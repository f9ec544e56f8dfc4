"""`topoc cache`: what is kept, told by recipe and by weight, and removed when asked."""

import os

import numpy as np
import pytest
import torch
from click.testing import CliRunner

from topoc.dsl.cli import main
from topoc.lowering.compress.cache import Cache, key
from topoc.lowering.compress.compress import compress
from topoc.lowering.compress.recipe import Linear, Palettize
from topoc.lowering.compress.source import Held, content
from topoc.lowering.kept import folder

FOUR, EIGHT = Palettize(4, 16), Linear(8, "channel")
KEPT = (("layers.0.q", FOUR), ("layers.1.q", FOUR), ("embed", EIGHT))


def put(kept, label, how):
    values = np.random.default_rng(len(label)).standard_normal((32, 64)).astype(np.float32)
    source = Held(label, torch.from_numpy(values * (1 + len(list(kept.root.glob("*"))))))
    name = key(content(source), how)
    kept.put(name, compress(source, how), label)
    return kept.root / f"{name}.weight"


@pytest.fixture
def files(tmp_path, monkeypatch):
    """Three weights, the last of which was used last."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    found = [put(Cache(), *one) for one in KEPT]
    for age, path in enumerate(found):
        os.utime(path, (86_400 * age, 86_400 * age))
    return found


def told(*options):
    found = CliRunner().invoke(main, ["cache", *options])
    assert found.exit_code == 0, found.output
    return found.stdout.splitlines()


def refused(*options):
    found = CliRunner().invoke(main, ["cache", *options])
    assert found.exit_code == 2
    assert found.stdout == ""
    return found.stderr


def kilobytes(*files):
    return f"{sum(one.stat().st_size for one in files) / 1000:.1f} kB"


def test_weights_are_told_by_recipe(files):
    first, *rest = told()

    assert first == f"{folder()}: 3 entries, {kilobytes(*files)}"
    assert rest == [
        f"  {EIGHT}: 1 entry, {kilobytes(files[2])}",
        f"  {FOUR}: 2 entries, {kilobytes(*files[:2])}",
    ]


def test_each_weight_has_a_line_that_tells_when_it_was_used(files):
    _, *lines = told("--long")

    assert [one.split()[0] for one in lines] == ["embed", "layers.1.q", "layers.0.q"]
    assert [one.split()[3] for one in lines] == ["1970-01-03", "1970-01-02", "1970-01-01"]
    for line, path, (_, how) in zip(lines, reversed(files), reversed(KEPT), strict=True):
        assert kilobytes(path) in line
        assert line.endswith(str(how))


def test_what_was_used_longest_ago_is_removed(files):
    left = files[2].stat().st_size
    first, second, *rest = told("--prune", f"{left / 1e9:.9f}")

    assert first.startswith("removed 2 entries, ")
    assert second == f"{folder()}: 1 entry, {kilobytes(files[2])}"
    assert rest == [f"  {EIGHT}: 1 entry, {kilobytes(files[2])}"]
    assert [one.exists() for one in files] == [False, False, True]
    assert told("--prune", "0")[1] == f"{folder()}: 0 entries, 0 B"
    assert not files[2].exists()


def test_more_room_than_is_used_removes_nothing(files):
    assert told("--prune", "1e6")[0] == "removed 0 entries, 0 B"
    assert all(one.exists() for one in files)


def test_a_damaged_weight_is_told(files):
    files[0].write_bytes(b"topoc")
    lines = told("--long")

    assert len(lines) == 4
    assert lines[1].endswith("damaged")


def test_nothing_is_kept_where_nothing_was_compiled(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "nowhere"))

    assert told("--long") == [f"{folder()}: 0 entries, 0 B"]
    assert told("--prune", "1") == ["removed 0 entries, 0 B", f"{folder()}: 0 entries, 0 B"]
    assert not folder().exists()


@pytest.mark.parametrize("size", ["-1", "nan", "inf", "1e300", "much", ""])
def test_what_is_no_size_is_refused(files, size):
    assert "--prune" in refused("--prune", size)
    assert all(one.exists() for one in files)


@pytest.mark.parametrize("options", [["--prune"], ["weights"], ["--all"]])
def test_what_it_does_not_take_is_refused(options):
    assert options[0] in refused(*options)
