"""The commands of the language, as a shell runs them."""

import json
import os
import resource
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner
from topo_text import gemma3, table

import topoc.dsl.resolve
from topoc.dsl.cli import TABLE, main
from topoc.dsl.parser import parse
from topoc.dsl.source import Source

HEAVY = ("torch", "coremltools", "numpy", "networkx", "rich", "cattrs", "topoc.lowering.emit")
SHIPPED = Path(__file__).parents[1] / "topologies" / "gemma3_270m.topo"


@pytest.fixture
def topoc_(monkeypatch, tmp_path):
    """Run `topoc` in an empty folder, with layer tables by the name of the model file."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(topoc.dsl.resolve, "_reader", lambda: table)

    def run(*arguments, stdin=None):
        result = CliRunner().invoke(main, arguments, input=stdin)
        assert result.exception is None or isinstance(result.exception, SystemExit)
        return result

    return run


def test_lint_reads_standard_input(topoc_):
    result = topoc_("lint", "-", stdin=gemma3("tap L90"))
    assert result.exit_code == 1
    assert "--> <stdin>:5:7" in result.stdout


def test_lint_fails_at_the_level_that_is_asked_for(topoc_):
    assert topoc_("lint", "-", stdin=gemma3()).exit_code == 0
    assert topoc_("lint", "-", "--fail-on", "note", stdin=gemma3()).exit_code == 1


def test_a_file_that_can_not_be_read_is_status_2_and_the_others_are_still_linted(topoc_):
    Path("t.topo").write_text(gemma3("tap L90"))
    result = topoc_("lint", "nowhere/x.topo", "t.topo")
    assert result.exit_code == 2
    assert "can't read `nowhere/x.topo`" in result.stdout
    assert "tap.unknown" in result.stdout


def test_what_is_no_file_is_refused_by_name_and_never_waited_for(topoc_, tmp_path):
    os.mkfifo("pipe.topo")
    (tmp_path / "folder").mkdir()
    for name, words in {
        "pipe.topo": "`pipe.topo` is no file but a pipe or a device",
        "/dev/zero": "`/dev/zero` is no file but a pipe or a device",
        "folder": "`folder` is a folder, and a topology is a file",
    }.items():
        for command in ("lint", "fmt", "show", "plan"):
            result = topoc_(command, name)
            assert result.exit_code == 2
            assert words in result.output
            assert "= help: name a file" in result.output


def test_a_config_that_is_a_pipe_is_refused(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    os.mkfifo("gemma3.json")
    Path("t.topo").write_text(gemma3())
    result = CliRunner().invoke(main, ["lint", "t.topo"])
    assert result.exit_code in {1, 2}
    assert "the config is no file" in result.output


def test_lint_as_json_is_one_document(topoc_):
    result = topoc_("lint", "-", "--format", "json", stdin=gemma3("tap L90"))
    assert [one["code"] for one in json.loads(result.stdout)["findings"]] == ["tap.unknown"]


@pytest.mark.parametrize("wrong", ["C", "C=", "C=x", "=3"])
def test_a_definition_is_a_name_and_a_number(topoc_, wrong):
    assert topoc_("lint", "-", "-D", wrong, stdin=gemma3()).exit_code == 2


def test_definitions_reach_the_topology(topoc_):
    text = gemma3("param C = 2048").replace("context 2048", "context C")
    assert "context 512\n" in topoc_("show", "-", "-D", "C=512", stdin=text).stdout


def test_show_prints_a_text_that_shows_the_same(topoc_):
    first = topoc_("show", "-", stdin=gemma3("kv { full: write blend }"))
    assert first.exit_code == 0
    model = 'model "gemma3.json"'
    again = topoc_("show", "-", stdin=first.stdout.replace('model "config.json"', model))
    assert again.stdout == first.stdout


def test_show_writes_a_file_whose_model_path_starts_from_there(topoc_):
    Path("sub").mkdir()
    result = topoc_("show", "-", "-o", "sub/flat.topo", stdin=gemma3())
    assert result.exit_code == 0
    assert result.stdout == ""
    assert 'model "../config.json"' in Path("sub/flat.topo").read_text()


def test_show_of_a_wrong_file_prints_only_what_is_wrong(topoc_):
    result = topoc_("show", "-", stdin=gemma3("tap L90"))
    assert (result.exit_code, result.stdout) == (1, "")
    assert "tap.unknown" in result.stderr


def test_what_stops_a_command_is_rendered_and_status_2(topoc_):
    result = topoc_("show", "nowhere")
    assert (result.exit_code, result.stdout) == (2, "")
    assert "no shipped topology is called `nowhere`" in result.stderr


def test_fmt_rewrites_checks_and_leaves_broken_files_alone(topoc_):
    path = Path("t.topo")
    path.write_text("topology  t {\n\n   context   8 # here\n kv {all:own }\n}")
    assert topoc_("fmt", "--check", "t.topo").exit_code == 1
    assert topoc_("fmt", "t.topo").exit_code == 0
    assert path.read_text() == "topology t {\n  context 8  # here\n  kv { all: own }\n}\n"
    assert topoc_("fmt", "--check", "t.topo").exit_code == 0
    path.write_text("topology t {\n dok\n}\n")
    assert topoc_("fmt", "t.topo").exit_code == 1
    assert path.read_text() == "topology t {\n dok\n}\n"


def test_fmt_prints_standard_input(topoc_):
    assert topoc_("fmt", "-", stdin="topology t{ }").stdout == "topology t { }\n"


def test_every_command_is_listed_without_being_imported():
    code = (
        "import sys; from topoc.dsl.cli import main; main(['--help'], standalone_mode=False);"
        "assert not [m for m in sys.modules if m.startswith('topoc.lowering')]"
    )
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    for name in TABLE:
        assert f"\n  {name} " in result.stdout


def test_lint_and_show_import_nothing_heavy():
    code = (
        "import sys\nfrom topoc.dsl.cli import main\nfor command in ('lint', 'show'):\n"
        f"  try: main([command, {str(SHIPPED)!r}])\n  except SystemExit: pass\n"
        f"print('heavy:', *[m for m in {HEAVY!r} if m in sys.modules], file=sys.stderr)"
    )
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert "topology gemma3_270m {" in result.stdout
    assert result.stderr.splitlines()[-1].split() == ["heavy:"]


def test_colours_stay_off_without_a_terminal_and_with_no_color(topoc_, monkeypatch):
    assert "\x1b" not in topoc_("lint", "-", stdin=gemma3("tap L90")).stdout
    from topoc.dsl.cli import view
    from topoc.dsl.render import plain

    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    monkeypatch.setenv("NO_COLOR", "1")
    assert view._paint(err=False) is plain
    monkeypatch.delenv("NO_COLOR")
    assert "\x1b[" in view._paint(err=False)("x", "error")


def cpu_seconds(*arguments):
    """The processor time of a run."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, "-c", *arguments], capture_output=True, check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def test_lint_starts_within_three_times_its_libraries():
    lint = ("from topoc.dsl.cli import main; main()", "lint", str(SHIPPED))
    ratios = (cpu_seconds(*lint) / cpu_seconds("import click, attrs, lark") for _ in range(8))
    assert any(one <= 3 for one in ratios)  # a busy machine makes single runs slow


def test_the_parser_works_without_a_cache_folder(tmp_path):
    code = "from topoc.dsl.parser import parse; from topoc.dsl.source import Source; "
    code += "file, findings = parse(Source('t', 'topology t { }')); assert file.items"
    (tmp_path / "file").write_text("no folder")
    for folder in ("file", "new"):
        environment = {**os.environ, "XDG_CACHE_HOME": str(tmp_path / folder)}
        subprocess.run([sys.executable, "-c", code], env=environment, check=True)
    assert (tmp_path / "new" / "topoc" / "grammar.lalr").is_file()


def test_a_damaged_parser_cache_is_made_anew(tmp_path):
    table_ = tmp_path / "topoc" / "grammar.lalr"
    table_.parent.mkdir()
    table_.write_bytes(b"damaged")
    code = "from topoc.dsl.parser import parse; from topoc.dsl.source import Source; "
    code += "file, findings = parse(Source('t', 'topology t { }')); assert file.items"
    environment = {**os.environ, "XDG_CACHE_HOME": str(tmp_path)}
    subprocess.run([sys.executable, "-c", code], env=environment, check=True)
    assert parse(Source("t", "topology t { }"))[0].items
