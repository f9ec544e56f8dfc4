"""`topoc rules`: every code that a finding can have."""

from collections.abc import Iterator

import click

from topoc.dsl.cli import view
from topoc.dsl.lint.lessons import LESSONS, STAGES, summary
from topoc.dsl.lint.rules import CODES, every


@click.command("rules")
def command() -> None:
    """List every code that a finding can have, with a sentence on each."""
    view.result("\n".join(_lines()))


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
