"""The statements that stand once: the last link of a chain that states one decides."""

from pathlib import Path
from typing import TypeVar

from topoc.dsl import ast
from topoc.dsl.diagnostic import Diagnostic, Label, error
from topoc.dsl.model import COREML_LLM, Target
from topoc.dsl.resolve.chain import Link
from topoc.dsl.resolve.chunks import UNITS
from topoc.dsl.resolve.scope import Scope
from topoc.dsl.suggest import advice
from topoc.dsl.targets import CHIPS, DEPLOYMENTS

FEATURES = ("topoc", COREML_LLM)
_MANY = (ast.Chunk, ast.Allow, ast.Measured, ast.Param)

T = TypeVar("T")


def last(links: tuple[Link, ...], kind: type[T]) -> T | None:
    """The statement of one kind that counts."""
    found = [one for link in links for one in link.of(kind)]
    return found[-1] if found else None


def report_duplicates(item: ast.Topology | ast.Experiment, findings: list[Diagnostic]) -> None:
    """Statements that stand twice in one topology, of those that stand once."""
    seen: dict[str, ast.Statement] = {}
    for one in item.statements:
        name = _name(one)
        if name and name in seen:
            first = Label(seen[name].span, "the first")
            message = f"`{name}` stands twice in `{item.name}`"
            findings.append(error("name.duplicate", message, one.span, related=(first,)))
        seen.setdefault(name, one)


def _name(statement: ast.Statement) -> str:
    """What may stand once: a statement's keyword, or a parameter with its name."""
    if isinstance(statement, ast.Param):
        return f"param {statement.name}"
    if isinstance(statement, ast.Rules):
        return statement.block
    return "" if isinstance(statement, _MANY) else type(statement).__name__.lower()


def model_path(links: tuple[Link, ...]) -> tuple[Path, ast.Model] | None:
    """The `config.json` that the last `model` line names, from the folder that states it."""
    found = [(link.folder / one.path.text, one) for link in links for one in link.of(ast.Model)]
    return found[-1] if found else None


def context(scope: Scope, links: tuple[Link, ...]) -> int | None:
    """The context, or None after an error was reported."""
    stated = last(links, ast.Context)
    if stated is None:
        topology = links[-1].topology
        message = f"`{topology.name}` states no context"
        help_ = "add a line such as `context 2048`"
        scope.report(error("context.missing", message, topology.name.span, help=help_))
        return None
    return scope.whole(stated.value)


def target(links: tuple[Link, ...], findings: list[Diagnostic]) -> Target:
    """Unit, deployment target and chip; the words tell themselves apart."""
    stated = last(links, ast.Target)
    if stated is None:
        return Target()
    unit, *others = stated.words
    found: dict[str, str] = {"unit": unit.text}
    if unit.text not in UNITS:
        _report(unit, UNITS, "unit", findings)
    for word in others:
        place = "deployment" if word.text in DEPLOYMENTS else "chip"
        if place == "chip" and word.text not in CHIPS:
            _report(word, (*DEPLOYMENTS, *CHIPS), "deployment target or chip", findings)
        elif place in found:
            message = f"`{word}` is a second {place}"
            help_ = "a target is one unit, then at most one system and one chip"
            findings.append(error("target.unknown", message, word.span, help=help_))
        found[place] = word.text
    return Target(**found)


def _report(word: ast.Word, known: tuple[str, ...], what: str, findings: list[Diagnostic]) -> None:
    message = f"there is no {what} `{word}`"
    help_ = advice(word.text, known, "there are")
    findings.append(error("target.unknown", message, word.span, help=help_))


def features(links: tuple[Link, ...], findings: list[Diagnostic]) -> str:
    """The profile of names and shapes."""
    stated = last(links, ast.Features)
    if stated is None:
        return FEATURES[0]
    if stated.profile.text not in FEATURES:
        message = f"there is no features profile `{stated.profile}`"
        help_ = advice(stated.profile.text, FEATURES, "there are")
        findings.append(error("features.unknown", message, stated.profile.span, help=help_))
    return stated.profile.text


def taps(scope: Scope, links: tuple[Link, ...]) -> tuple[int, ...]:
    """The layers whose residual stream is exported."""
    stated = last(links, ast.Tap)
    found: set[int] = set()
    for layers in stated.layers if stated else ():
        found.update(scope.span_of(layers, beyond="tap.unknown") or ())
    return tuple(sorted(found))
