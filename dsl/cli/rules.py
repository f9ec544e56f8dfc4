"""`topoc rules`: every code that a finding can have."""

from collections.abc import Iterator
from pathlib import Path

import click

from topoc.dsl.cli import view
from topoc.dsl.lint.lessons import LESSONS, STAGES, summary
from topoc.dsl.lint.page import pages
from topoc.dsl.lint.rules import CODES, every


@click.command("rules")
@click.option(
    "--write",
    "folder",
    type=click.Path(path_type=Path, file_okay=False),
    metavar="DIR",
    help="Write a page on each rule there instead.",
)
def command(folder: Path | None) -> None:
    """List every code that a finding can have, with a sentence on each."""
    if folder is None:
        view.result("\n".join(_lines()))
    else:
        _write(folder)


def _write(folder: Path) -> None:
    """The pages of all rules; those of rules that are gone are removed."""
    found = pages()
    folder.mkdir(parents=True, exist_ok=True)
    for path in folder.glob("*.*.md"):
        if path.name not in found:
            path.unlink()
    for name, text in found.items():
        (folder / name).write_text(text, "utf-8", newline="\n")
    view.progress(f"wrote {len(found)} pages to {folder}")


def _lines() -> Iterator[str]:
    codes = (*LESSONS, *STAGES, *CODES)
    width = max(map(len, codes))
    yield "rules"
    for rule in sorted(every(), key=lambda one: one.code):
        yield f"  {rule.code:<{width}}  {rule.severity.value:<7}  {summary(rule.code)}"
    for title, others in (("kinds of error in a text", LESSONS), ("later stages", STAGES)):
        yield f"\n{title}"
        yield from (f"  {code:<{width}}  {summary(code)}" for code in sorted(others))
    yield "\n`topoc explain CODE` tells more of one"
