"""Pages that list things list all of them, and their links lead somewhere."""

import re
import typing
from pathlib import Path

import attrs
import pytest

from topoc.lowering import manifest
from topoc.lowering.ops import ALL_OPS
from topoc.lowering.passes import DEFAULT

ROOT = Path(__file__).parents[1]
PAGES = [
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")),
    *(ROOT / "docs").rglob("*.md"),
]
LINK = re.compile(r"\]\(([^)#]+)(?:#[^)]*)?\)")


def text(name):
    return (ROOT / "docs" / name).read_text("utf-8")


def kinds(of):
    (found,) = (typing.get_args(one.type) for one in attrs.fields(of) if one.name == "kind")
    return found


def test_every_op_and_pass_is_in_the_page_on_programs():
    page = text("ir.md")
    table = page.partition("## Ops")[2]
    assert [one.mnemonic for one in ALL_OPS if f"`{one.mnemonic}`" not in table] == []
    assert [one.name for one in DEFAULT if f"`{one.name}`" not in table] == []


@pytest.mark.parametrize("page", ["ir.md", "runtime.md"])
@pytest.mark.parametrize("of", [manifest.Source, manifest.Sink])
def test_every_source_and_sink_is_told(page, of):
    assert [one for one in kinds(of) if f"`{one}`" not in text(page)] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_links_lead_to_files(page):
    targets = [one for one in LINK.findall(page.read_text("utf-8")) if "://" not in one]
    assert [one for one in targets if not (page.parent / one).exists()] == []


def test_decisions_have_numbers_of_their_own():
    names = sorted(one.name for one in (ROOT / "docs" / "decisions").glob("*.md"))
    numbers = [name[:4] for name in names]
    assert len(numbers) == len({*numbers})
    for name in names:
        title = (ROOT / "docs" / "decisions" / name).read_text("utf-8").splitlines()[0]
        assert title.startswith(f"# {int(name[:4])}. ")
