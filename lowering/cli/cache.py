"""`topoc cache`: what compiles keep for others, and how to be rid of it."""

from math import isfinite
from time import gmtime, strftime
from typing import TYPE_CHECKING

import click

from topoc.dsl.cli import view
from topoc.lowering.cli.size import size

if TYPE_CHECKING:
    from topoc.lowering.kept import Entry

GB = 1e9


def _finite(_: click.Context, __: click.Parameter, value: float | None) -> float | None:
    """A number of bytes; NaN is in every range, and so is what is too large for one."""
    if value is not None and not isfinite(value * GB):
        message = f"{value} is no number of GB."
        raise click.BadParameter(message)
    return value


@click.command("cache")
@click.option(
    "--prune",
    type=click.FloatRange(min=0),
    metavar="GB",
    callback=_finite,
    help="Remove what was used longest ago until at most so many GB are left.",
)
@click.option("--long", "each", is_flag=True, help="One line for each entry.")
def command(prune: float | None, *, each: bool) -> None:
    """Tell what compiles keep for others: compressed weights, host tables, measured values."""
    from topoc.lowering.compress.cache import Cache

    cache = Cache()
    if prune is not None:
        removed = cache.prune(int(prune * GB))
        view.result(f"removed {_told(removed)}")
    entries = cache.entries()
    view.result(f"{cache.root}: {_told(entries)}")
    for one in entries if each else ():
        used = strftime("%Y-%m-%d %H:%M", gmtime(one.used))
        view.result(f"  {one.label:32} {size(one.bytes):>9}  {used}  {one.recipe}")
    recipes = sorted({one.recipe for one in entries})
    for recipe in () if each else recipes:
        mine = [one for one in entries if one.recipe == recipe]
        view.result(f"  {recipe}: {_told(mine)}")


def _told(entries: "list[Entry]") -> str:
    count = len(entries)
    return (
        f"{count} {'entry' if count == 1 else 'entries'}, {size(sum(one.bytes for one in entries))}"
    )
