"""docs/rules is what the rules say of themselves."""

import re
from pathlib import Path

from click.testing import CliRunner

from topoc.dsl.cli import main
from topoc.dsl.lint.page import pages
from topoc.dsl.lint.rules import CODES

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs" / "rules"


def test_the_pages_are_current():
    """`topoc rules --write docs/rules` writes them."""
    written = {path.name: path.read_text("utf-8") for path in DOCS.iterdir()}
    assert written == pages()


def test_every_rule_has_a_page_and_a_line_in_the_list():
    found = pages()
    assert set(found) == {"README.md", *(f"{code}.md" for code in CODES)}
    links = re.findall(r"\]\((\S+)\)", found["README.md"])
    assert sorted(links) == sorted(f"{code}.md" for code in CODES)


def test_writing_replaces_removes_and_leaves_the_rest(tmp_path):
    folder = tmp_path / "rules"
    folder.mkdir()
    (folder / "state.update.md").write_text("old")
    (folder / "state.gone.md").write_text("gone")
    (folder / "notes.txt").write_text("mine")
    result = CliRunner().invoke(main, ["rules", "--write", str(folder)])
    assert result.exit_code == 0
    assert (folder / "notes.txt").read_text() == "mine"
    written = {one.name: one.read_text("utf-8") for one in folder.glob("*.md")}
    assert written == pages()


def test_pages_tell_no_machine_and_no_session():
    for text in pages().values():
        assert not re.search(r"/(work|tmp|home|Users)/", text)
