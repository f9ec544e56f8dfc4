"""Options that several commands share."""

import re
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource


class _Definition(click.ParamType[tuple[str, float]]):
    """`NAME=NUMBER`."""

    name = "NAME=NUMBER"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[str, float]:  # click hands over what it was given
        """Split a definition, or fail with its shape."""
        if isinstance(value, tuple):
            return value
        found = re.fullmatch(r"(\w+)=(-?\d{1,15}(?:\.\d{1,15})?)", str(value))
        if found is None:
            self.fail(f"{value!r} is not NAME=NUMBER, as in C=4096", param, ctx)
        return found[1], float(found[2])


define = click.option(
    "-D", "define", type=_Definition(), multiple=True, help="Set a parameter of the topology."
)
model = click.option(
    "--model",
    type=click.Path(path_type=Path),
    help="A config.json in place of the one that the topology names.",
)
topology = click.option("--topology", "name", help="Which topology of the file.")


def stated(name: str) -> bool:
    """Whether the parameter was given on the command line, and is no default."""
    source = click.get_current_context().get_parameter_source(name)
    return source is ParameterSource.COMMANDLINE


def no_format_beside(page: str | None) -> None:
    """Refuse `--format` where a page comes in place of the text that it is about."""
    if page is not None and stated("style"):
        message = "--format is of what is printed, and a page comes in its place: leave one out"
        raise click.UsageError(message)
