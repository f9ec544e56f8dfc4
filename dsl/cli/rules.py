"""`topoc rules`: every code that a finding can have."""

from collections.abc import Iterator

import click

from topoc.dsl.cli import view
from topoc.dsl.lint.lessons import LESSONS, summary
from topoc.dsl.lint.rules import ALL_RULES


@click.command("rules")
def command() -> None:
    """List the rules, and the kinds of error that no rule raises, a line each."""
    view.result("\n".join(_lines()))


def _lines() -> Iterator[str]:
    width = max(len(code) for code in (*LESSONS, *(rule.code for rule in ALL_RULES)))
    yield "rules"
    for rule in sorted(ALL_RULES, key=lambda one: one.code):
        yield f"  {rule.code:<{width}}  {rule.severity.value:<7}  {summary(rule.code)}"
    yield "kinds of error that no rule raises"
    for code in sorted(LESSONS):
        yield f"  {code:<{width}}  {summary(code)}"
    yield "`topoc explain CODE` tells more of one"
