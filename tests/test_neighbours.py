"""What was given up under one name is recognised under another."""

import os

import pytest
from shipped import FILES, TOPOLOGIES, layout
from topo_text import table

import topoc.dsl.neighbours
from topoc.dsl.diagnostic import Severity
from topoc.dsl.load import Loader, load
from topoc.dsl.resolve import Given

CODE = "ledger.revived-verdict"


@pytest.fixture
def near(tmp_path, monkeypatch):
    """Write a topology beside the layouts; its findings about verdicts."""
    monkeypatch.setattr(topoc.dsl.neighbours, "_shipped", lambda: tmp_path / "none")
    for path in FILES:
        (tmp_path / path.name).write_text(path.read_text("utf-8"), "utf-8")

    def of(text, name="mine"):
        path = tmp_path / f"{name}.topo"
        path.write_text(text, "utf-8")
        topology, findings = load(path, layers=table)
        assert topology is not None, [(one.code, one.message) for one in findings]
        return [one for one in findings if one.code == CODE]

    return of


MERGED = "chunk everything = ple + L0-34 + norm + head(argmax)\n expect { chunks <= 1 }"


def test_another_name_does_not_hide_a_verdict(near):
    (finding,) = near(f"topology mine extends swa4 {{\n {MERGED}\n}}\n")
    assert finding.severity is Severity.ERROR
    assert finding.message == "`mine` builds the programs of `merged1`, which is rejected"
    assert "35 layers in one graph: Must re-compile the E5 bundle" in finding.related[0].words
    assert "a compiler for which 35 such layers are not too many" in finding.help


def test_a_copy_of_a_shipped_verdict_is_told_of_once(near, tmp_path, monkeypatch):
    monkeypatch.setattr(topoc.dsl.neighbours, "_shipped", lambda: TOPOLOGIES)
    assert (tmp_path / "merged1.topo").is_file()
    (finding,) = near(f"topology mine extends swa4 {{\n {MERGED}\n}}\n")
    assert "`merged1`" in finding.message
    text = (tmp_path / "merged1.topo").read_text("utf-8")
    (tmp_path / "other.topo").write_text(text.replace("merged1", "other"), "utf-8")
    told = {one.message for one in near(f"topology mine extends swa4 {{\n {MERGED}\n}}\n")}
    assert len(told) == 2  # another name is another verdict


def test_a_pipe_beside_a_file_is_not_waited_for(near, tmp_path):
    os.mkfifo(tmp_path / "pipe.topo")
    assert len(near(f"topology mine extends swa4 {{\n {MERGED}\n}}\n")) == 1


def test_the_file_that_declares_it_gets_a_note():
    _, findings = load(layout("merged1"), layers=table)
    assert [one.severity for one in findings if one.code == CODE] == [Severity.NOTE]


@pytest.mark.parametrize(
    "stem", ["wfa", "future_w4a8", "padded32", "head_split16", "future_eagle3"]
)
def test_each_verdict_is_recognised_under_another_name(near, tmp_path, stem):
    text = (tmp_path / f"{stem}.topo").read_text("utf-8").replace(stem, "mine")
    head, _, rest = text.partition("  status ")
    (finding,) = near(f"{head}  status planned\n{rest.partition('  }')[2]}")
    assert f"`{stem}`" in finding.message


@pytest.mark.parametrize(
    "change",
    [
        "functions decode",
        "context 1024",
        "tap L17",
        "quantize { head: none }",
        "kv { full: write append }",
        "target gpu macos15 m4",
        "kv { L0: write blend }",
    ],
)
def test_what_builds_otherwise_is_no_revival(near, change):
    assert near(f"topology mine extends swa4 {{\n {MERGED}\n {change}\n}}\n") == []


@pytest.mark.parametrize(
    "change",
    [
        'doc "Anew."',
        "status planned",
        'allow chunk.too-many-layers because "x"',
        "target ane ios18",
    ],
)
def test_words_make_no_difference(near, change):
    assert len(near(f"topology mine extends swa4 {{\n {MERGED}\n {change}\n}}\n")) == 1


def test_it_may_be_allowed_with_a_reason(near):
    allow = f'allow {CODE} because "a new compiler"'
    assert near(f"topology mine extends swa4 {{\n {MERGED}\n {allow}\n}}\n") == []


def test_several_topologies_of_one_file_are_looked_at(near, tmp_path):
    verdict = 'because "b"\n figure "1 ms"\n under "u"\n revisit "r"'
    (tmp_path / "two.topo").write_text(
        "topology one extends swa4 { tap L3 }\n"
        f"topology two extends swa4 {{ functions decode\n status shelved {{ {verdict} }} }}\n"
    )
    (finding,) = near("topology mine extends swa4 { functions decode }\n")
    assert "`two`, which is shelved" in finding.message


def test_a_reopened_verdict_stands_no_longer(near, tmp_path):
    old = (tmp_path / "merged1.topo").read_text("utf-8")
    new = old.replace('revisit "a comp', 'reopened "iOS 27"\n revisit "a comp')
    (tmp_path / "merged1.topo").write_text(new)
    assert near(f"topology mine extends swa4 {{\n {MERGED}\n}}\n") == []


def test_neighbours_that_are_broken_say_nothing(near, tmp_path):
    (tmp_path / "broken.topo").write_text("status rejected\ntopology {{{\n")
    (tmp_path / "bytes.topo").write_bytes(b"status rejected \xff\xfe")
    (tmp_path / "folder.topo").mkdir()
    (tmp_path / "loop.topo").write_text("topology loop extends loop {\n status rejected\n}\n")
    assert near("topology mine extends swa4 { functions decode }\n") == []


def test_shipped_verdicts_count_wherever_a_file_is(tmp_path, monkeypatch):
    monkeypatch.setattr(topoc.dsl.neighbours, "_shipped", lambda: TOPOLOGIES)
    text = layout("swa4").read_text("utf-8")
    lines = [one for one in text.splitlines(True) if not one.startswith("  chunk ")]
    body = "".join(lines).replace("swa4", "mine").rstrip().removesuffix("}")
    path = tmp_path / "mine.topo"
    path.write_text(f"{body}\n {MERGED.splitlines()[0]}\n}}\n")
    _, findings = load(path, layers=table)
    assert CODE in [one.code for one in findings]


def test_few_files_are_resolved(monkeypatch):
    """Most are told apart by their text, or a lint of one file would resolve thirty."""
    resolved = []
    real = topoc.dsl.neighbours.resolve

    def counted(*arguments):
        resolved.append(arguments)
        return real(*arguments)

    monkeypatch.setattr(topoc.dsl.neighbours, "resolve", counted)
    paths = FILES
    for path in paths:
        list(Loader(Given({}, None, table)).all(str(path)))
    assert len(resolved) <= len(paths) // 2
