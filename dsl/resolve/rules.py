"""Rules in order: for each property of each thing the last rule that sets it wins."""

from collections.abc import Hashable, Iterable, Iterator
from typing import Any

from attrs import define, field, frozen

from topoc.dsl import ast
from topoc.dsl.diagnostic import Diagnostic, Label, Severity, error, warning
from topoc.dsl.plain import Plain
from topoc.dsl.resolve.chain import Link
from topoc.dsl.resolve.scope import Scope
from topoc.dsl.source import Span


@frozen(eq=False, repr=False)
class Placed(Plain):
    """A rule, and whether the topology itself states it rather than a base."""

    rule: ast.Rule
    own: bool
    block: str


def rules_of(links: tuple[Link, ...], block: str) -> Iterator[Placed]:
    """The rules of one kind of block, the base's first."""
    for link in links:
        for rules in link.of(ast.Rules):
            if rules.block == block:
                for rule in rules.rules:
                    yield Placed(rule, own=link is links[-1], block=block)


@define(eq=False, repr=False)
class Board:
    """Who set what last. Values are whatever the block's settings become."""

    scope: Scope
    cells: dict[Hashable, tuple[Any, Placed]] = field(factory=dict)
    seen: list[tuple[Placed, int]] = field(factory=list)
    beaten: dict[int, Placed] = field(factory=dict)

    def set(self, placed: Placed, keys: Iterable[Hashable], value: Any) -> None:
        """Let a rule set the cells `keys` to `value`."""
        for key in keys:
            if key in self.cells:
                self.beaten[id(self.cells[key][1])] = placed
            self.cells[key] = (value, placed)

    def matched(self, placed: Placed, count: int) -> None:
        """Note how many things a rule's selector names; none is an error in one's own text."""
        self.seen.append((placed, count))
        if count == 0 and placed.own:
            span = _selector(placed.rule)
            message = f"`{span.text}` names nothing in this model"
            help_ = "groups side by side intersect; remove one, or the rule"
            self.scope.report(error("selector.empty", message, span, help=help_))

    def get(self, key: Hashable) -> Any:
        """The value of a cell, or None."""
        return self.cells[key][0] if key in self.cells else None

    def span(self, key: Hashable) -> Span | None:
        """The rule that won a cell."""
        return self.cells[key][1].rule.span if key in self.cells else None

    def report_dead(self) -> None:
        """Report rules of which nothing is left."""
        alive = {id(placed) for _, placed in self.cells.values()}
        for placed, count in self.seen:
            winner = self.beaten.get(id(placed))
            if count and id(placed) not in alive and winner is not None:
                finding = _dead(placed, winner)
                if finding is not None:
                    self.scope.report(finding)


def _selector(rule: ast.Rule) -> Span:
    first, last = rule.groups[0].span, rule.groups[-1].span
    return Span(first.source, first.start, last.end)


def _dead(placed: Placed, winner: Placed) -> Diagnostic | None:
    """What to say of a rule that later rules override in full."""
    name, by = _selector(placed.rule).text, _selector(winner.rule).text
    if placed.own:
        message = f"nothing is left of the rule for `{name}`: later rules set all of it"
        label = Label(winner.rule.span, "set again here")
        help_ = "remove it, or move it below; the last rule that matches wins"
        return warning("rule.dead", message, _selector(placed.rule), help=help_, related=(label,))
    if placed.block != "quantize":
        return None
    narrower = len(placed.rule.groups) > len(winner.rule.groups) or name != by
    if not (winner.own and narrower and by in {"weights", "all"}):
        return None
    message = f"`{by}` also overrides the base's exception for `{name}`"
    label = Label(placed.rule.span, "the exception")
    help_ = f"repeat the rule for `{name}` after this one to keep it"
    at = Label(_selector(winner.rule))
    return Diagnostic("rule.dead", Severity.NOTE, message, at, (label,), help_)
