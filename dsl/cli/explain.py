"""`topoc explain`: what a code or a message means, why, and how to mend what it is about."""

import re
from collections.abc import Iterator
from inspect import cleandoc
from textwrap import indent, wrap

import click

from topoc.dsl.cli import view
from topoc.dsl.diagnostic import Place, TopocError, error
from topoc.dsl.lint import sources
from topoc.dsl.lint.lessons import LESSONS, NOT_LOWERED, STAGES, Lesson, summary
from topoc.dsl.lint.rule import Evidence, Rule
from topoc.dsl.lint.rules import CODES, rule
from topoc.dsl.suggest import close, quoted

_CODE = re.compile(r"[a-z]+(\.[a-z0-9-]*)?")


@click.command("explain", context_settings={"ignore_unknown_options": True})
@click.argument("about", metavar="CODE|MESSAGE", nargs=-1, required=True)
def command(about: tuple[str, ...]) -> None:
    """Explain a code, as in `kv.donor-forgets`, or what a compiler or runtime said."""
    text = " ".join(about)
    code = text.strip("[]`")
    if code in CODES:
        view.result("\n".join(_rule(rule(code))))
    elif code in LESSONS:
        view.result("\n".join(_lesson(code, LESSONS[code])))
    elif code in STAGES or code.endswith(NOT_LOWERED):
        view.result(f"{code}\n\n{summary(code)}")
    else:
        _message(text, code)


def _message(text: str, code: str) -> None:
    """Tell what may be behind a message; what is shaped like a code must be one."""
    from topoc.dsl.cli.symptom import told

    lines = [] if "." in code and _CODE.fullmatch(code) else list(told(text))
    if not lines:
        shown = code if _CODE.fullmatch(code) else text
        message = f"no finding has the code `{shown}`"
        if not _CODE.fullmatch(code):
            message = "no rule and no symptom goes by such a message"
        raise TopocError(error("name.unknown", message, Place("topoc explain"), help=_near(code)))
    view.result("\n".join(lines))


def _rule(kind: type[Rule]) -> Iterator[str]:
    yield f"{kind.code}: {kind.severity.value}, {_standing(kind)}"
    yield f"\n{cleandoc(kind.__doc__ or '')}"
    if kind.remedy:
        yield "\nwhat to do"
        yield f"  {kind.remedy}"
    if kind.error_texts:
        yield "\nwhat compilers and runtimes say"
        yield from (f"  {text}" for text in kind.error_texts)
    if kind.evidence:
        yield "\nevidence"
        yield from evidence(kind.evidence)
        yield from footnote(kind.evidence)
    for title, text in _examples(kind):
        yield from _example(title, text)


def evidence(found: tuple[Evidence, ...]) -> Iterator[str]:
    """What was seen, under which circumstances, and where that is told."""
    installed = sources.installed_coremltools()
    for one in found:
        yield f"  {one.trust.value} {one.date}: {one.what}"
        yield from (f"    {part}" for part in (sources.context(one), one.source) if part)
        if age := sources.aged(one, installed):
            yield f"    {age}"


def footnote(found: tuple[Evidence, ...]) -> Iterator[str]:
    """Where the documents are that evidence cites."""
    if note := sources.footnote(found):
        yield from wrap(f"({note})", 96, initial_indent="  ", subsequent_indent="  ")


def _examples(kind: type[Rule]) -> Iterator[tuple[str, str]]:
    yield "wrong", kind.bad
    yield "right", kind.good
    yield "wrong, as a program", kind.bad_mil
    yield "right, as a program", kind.good_mil
    yield "wrong, as a checkpoint", kind.bad_checkpoint
    yield "right, as a checkpoint", kind.good_checkpoint


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
    if text:
        yield f"\n{title}"
        yield indent(text.strip(), "  ")


def _near(code: str) -> str:
    """The codes that look like one, else those of its family, else where they are listed."""
    known = [*CODES, *LESSONS, *STAGES]
    if found := close(code, known):
        return f"did you mean {quoted(found)}?"
    family = sorted(one for one in known if one.partition(".")[0] == code.partition(".")[0])
    return f"this family has {quoted(family, 'and')}" if family else "`topoc rules` lists them all"
