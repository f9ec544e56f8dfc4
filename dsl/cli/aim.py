"""The options of lint that choose rules and a target."""

from typing import Any

import click

from topoc.dsl.lint.rules import CODES
from topoc.dsl.model import Target
from topoc.dsl.resolve.chunks import UNITS
from topoc.dsl.suggest import advice
from topoc.dsl.targets import CHIPS, DEPLOYMENTS


def _chosen(_: click.Context, __: click.Parameter, given: tuple[str, ...]) -> tuple[str, ...]:
    """Codes or families, also several with commas."""
    words = [word.strip() for one in given for word in one.split(",") if word.strip()]
    families = {code.partition(".")[0] for code in CODES}
    for word in words:
        if word not in CODES and word not in families:
            known = (*CODES, *sorted(families))
            hint = advice(word, known, "`topoc rules` lists them:")
            message = f"no rule or family is called {word!r}; {hint}"
            raise click.BadParameter(message)
    return tuple(words)


class _Target(click.ParamType[Target]):
    """The words of a `target` line; a chip alone means the Neural Engine."""

    name = "TARGET"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> Target:  # click hands over what it was given
        """Read `a19`, `gpu`, `ane ios18 a19`."""
        if isinstance(value, Target):
            return value
        found = {"unit": "ane"}
        if not str(value).split():
            self.fail("a target is a unit, a system, a chip, or some of them", param, ctx)
        for word in str(value).split():
            place = _place(word)
            if place is None:
                hint = advice(word, (*UNITS, *DEPLOYMENTS, *CHIPS), "there are")
                self.fail(f"{word!r} is no unit, system or chip; {hint}", param, ctx)
            found[place] = word
        return Target(**found)


def _place(word: str) -> str | None:
    known = {"unit": UNITS, "deployment": DEPLOYMENTS, "chip": CHIPS}
    return next((place for place, words in known.items() if word in words), None)


select = click.option(
    "--select", multiple=True, callback=_chosen, metavar="CODE", help="Run only these rules."
)
ignore = click.option(
    "--ignore", multiple=True, callback=_chosen, metavar="CODE", help="Do not run these rules."
)
target = click.option(
    "--target", type=_Target(), help="Judge for this target, as in 'ane ios18 a19' or a19."
)
