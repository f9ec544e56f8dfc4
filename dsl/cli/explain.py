"""`topoc explain`: what a code means, why, and how to mend what it finds."""

from collections.abc import Iterator
from inspect import cleandoc
from textwrap import indent

import click

from topoc.dsl.cli import view
from topoc.dsl.diagnostic import Place, TopocError, error
from topoc.dsl.lint.lessons import LESSONS, NOT_LOWERED, STAGES, Lesson, summary
from topoc.dsl.lint.rule import Rule
from topoc.dsl.lint.rules import CODES, rule
from topoc.dsl.suggest import close, quoted


@click.command("explain")
@click.argument("code", metavar="CODE")
def command(code: str) -> None:
    """Explain CODE, as it stands in the brackets of a finding: `kv.donor-forgets`."""
    code = code.strip("[]`")
    if code in CODES:
        view.result("\n".join(_rule(rule(code))))
    elif code in LESSONS:
        view.result("\n".join(_lesson(code, LESSONS[code])))
    elif code in STAGES or code.endswith(NOT_LOWERED):
        view.result(f"{code}\n\n{summary(code)}")
    else:
        message = f"no finding has the code `{code}`"
        raise TopocError(error("name.unknown", message, Place("topoc explain"), help=_near(code)))


def _rule(kind: type[Rule]) -> Iterator[str]:
    yield f"{kind.code}: {kind.severity.value}, {_standing(kind)}"
    yield f"\n{cleandoc(kind.__doc__ or '')}"
    if kind.evidence:
        yield "\nevidence"
    for one in kind.evidence:
        yield f"  {one.trust.value} {one.date}: {one.what}"
        yield f"    {one.source}"
    yield from _example("wrong", kind.bad)
    yield from _example("right", kind.good)


def _standing(kind: type[Rule]) -> str:
    if kind.coherence:
        return "can't be allowed"
    about = "about the Neural Engine" if kind.placement else "about any unit"
    return f"{about}, can be allowed with a reason"


def _lesson(code: str, lesson: Lesson) -> Iterator[str]:
    yield f"{code}\n\n{lesson.says}"
    yield from _example("wrong", lesson.wrong)
    yield from _example("right", lesson.right or "(without the line)")


def _example(title: str, text: str) -> Iterator[str]:
    yield f"\n{title}"
    yield indent(text.strip(), "  ")


def _near(code: str) -> str:
    """The codes that look like one, else those of its family, else where they are listed."""
    known = [*CODES, *LESSONS, *STAGES]
    if found := close(code, known):
        return f"did you mean {quoted(found)}?"
    family = sorted(one for one in known if one.partition(".")[0] == code.partition(".")[0])
    return f"this family has {quoted(family, 'and')}" if family else "`topoc rules` lists them all"
