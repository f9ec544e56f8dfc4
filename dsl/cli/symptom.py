"""What `topoc explain "MESSAGE"` says: the rules and causes that may be behind a message."""

from collections.abc import Iterator
from textwrap import wrap

from topoc.dsl.cli.explain import evidence, footnote
from topoc.dsl.lint.diagnose import Match, diagnose
from topoc.dsl.lint.lessons import summary
from topoc.dsl.lint.rule import Evidence
from topoc.dsl.lint.symptoms import Symptom
from topoc.dsl.suggest import quoted

_WIDTH = 96


def told(message: str) -> Iterator[str]:
    """The likeliest causes first; nothing where none is known."""
    matches = diagnose(message)
    if matches:
        many = f"{len(matches)} causes are" if matches[1:] else "one cause is"
        yield f"{many} known for such a message, the likeliest first"
    for match in matches:
        yield from _match(match)
    if cited := tuple(one for match in matches for one in _evidence(match)):
        yield ""
        yield from footnote(cited)


def _match(match: Match) -> Iterator[str]:
    behind = match.behind
    yield f"\n{_title(match)}"
    if isinstance(behind, Symptom):
        yield from _filled(behind.means)
        yield from _filled(f"What to do: {behind.remedy}")
        if behind.rules:
            yield from _filled(f"Rules: {quoted(behind.rules, 'and')}.")
        yield from evidence(_evidence(match))
    else:
        yield from _filled(summary(behind.code))
        yield from _filled(f"What to do: {behind.remedy}")
        yield from evidence(_evidence(match))
        yield f"  `topoc explain {behind.code}` tells more"


def _evidence(match: Match) -> tuple[Evidence, ...]:
    """The first that was seen of it; `topoc explain CODE` shows all."""
    behind = match.behind
    return (behind.evidence,) if isinstance(behind, Symptom) else behind.evidence[:1]


def _title(match: Match) -> str:
    name = "a general failure" if isinstance(match.behind, Symptom) else match.behind.code
    return f"{name}: {match.text}"


def _filled(text: str) -> list[str]:
    return wrap(text, _WIDTH, initial_indent="  ", subsequent_indent="  ", break_on_hyphens=False)
