"""`topoc fmt`: canonical layout, comments kept."""

from pathlib import Path

import click

from topoc.dsl.cli import view
from topoc.dsl.layout import lay_out
from topoc.dsl.library import STDIN, find, read
from topoc.dsl.parser import parse


@click.command("fmt")
@click.argument("files", nargs=-1, required=True, metavar="FILE...")
@click.option("--check", is_flag=True, help="Change nothing; exit with 1 if a file would change.")
def command(files: tuple[str, ...], *, check: bool) -> None:
    """Rewrite each FILE in canonical layout; `-` reads standard input and prints."""
    status = view.CLEAN
    for file in files:
        source = read(find(file))
        _, findings = parse(source)
        if findings:
            view.problems(findings)
            status = view.FINDINGS
            continue
        text = lay_out(source)
        if file == STDIN and not check:
            view.result(text.rstrip("\n"))
        elif text != source.text:
            status = _changed(file, text, status, check=check)
    raise SystemExit(status)


def _changed(file: str, text: str, status: int, *, check: bool) -> int:
    """Write a file that is not canonical, or say that it is not."""
    if check:
        view.result(f"{file} is not in canonical layout")
        return view.FINDINGS
    Path(find(file)).write_text(text, "utf-8")
    view.progress(f"rewrote {file}")
    return status
