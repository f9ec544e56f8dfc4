"""Lark's tree to ours: a rule of the grammar named `chunk` builds an `ast.Chunk`."""

# ruff: noqa: D102, N802 — a method for each rule and terminal of the grammar, and named like it

import re
from typing import Any

from lark import Token, Transformer, v_args
from lark.tree import Meta

from topoc.dsl import ast
from topoc.dsl.diagnostic import Diagnostic, error
from topoc.dsl.source import Source, Span
from topoc.dsl.spelling import unquote

# Children of a lark node are of many types; each method knows those of its rule.
Children = list[Any]

_NUMBER = re.compile(r"([-\d.]+)\s*(\S*)")


_LARGEST = 1e15
_DAYS = (31, 29, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31)  # at most, by month
_FEBRUARY = 2
_BEYOND = 10**9  # a layer of no model; longer numbers are not even read


def _no_date(text: str) -> str:
    """What the calendar does not have of a day or a month; nothing where it has both."""
    year, month, *day = map(int, text.split("-"))
    if not 1 <= month <= len(_DAYS):
        return f"there is no month {month}"
    leap = year % 4 == 0 and (year % 100 != 0 or year % 400 == 0)
    last = 28 if month == _FEBRUARY and not leap else _DAYS[month - 1]
    return f"that month has days 1 to {last}" if day and not 1 <= day[0] <= last else ""


def _layer(digits: str) -> int:
    short = digits.lstrip("0")
    return int(short or 0) if len(short) < len(str(_BEYOND)) else _BEYOND


@v_args(meta=True)
class ToAst(Transformer[Token, Any]):
    """Builds nodes bottom up, and reports names that are spelled against the rules."""

    def __init__(self, source: Source) -> None:
        super().__init__(visit_tokens=True)
        self.source = source
        self.findings: list[Diagnostic] = []

    def _at(self, place: Meta | Token) -> Span:
        return Span(self.source, place.start_pos or 0, place.end_pos or 0)

    def WORD(self, token: Token) -> ast.Word:
        return ast.Word(str(token), span=self._at(token))

    def CODE(self, token: Token) -> ast.Word:
        return ast.Word(str(token), span=self._at(token))

    def TEXT(self, token: Token) -> ast.Text:
        return ast.Text(unquote(token) or "", span=self._at(token))

    def NUMBER(self, token: Token) -> ast.Number:
        digits, unit = _NUMBER.match(token).groups()  # type: ignore[union-attr] # the terminal matched
        value = float(digits)
        if abs(value) > _LARGEST:
            message = f"numbers end at {_LARGEST:.0f}"
            help_ = "nothing that a topology counts is larger"
            self.findings.append(error("value.range", message, self._at(token), help=help_))
            value = 1.0  # fits wherever a number stands
        return ast.Number(value, unit, span=self._at(token))

    def DATE(self, token: Token) -> Token:
        fault = _no_date(token)
        if fault:
            message = f"`{token}` is no date: {fault}"
            help_ = "write the day or the month that is meant, as `2026-04-13` or `2026-04`"
            self.findings.append(error("value.range", message, self._at(token), help=help_))
        return token

    def LAYERS(self, token: Token) -> ast.Range:
        first, _, last = token.replace("L", "").partition("-")
        return ast.Range(_layer(first), _layer(last or first), span=self._at(token))

    def start(self, meta: Meta, of: Children) -> ast.File:
        whole = Span(self.source, 0, len(self.source.text))
        return ast.File(tuple(of), span=whole if meta.empty else self._at(meta))

    def topology(self, meta: Meta, of: Children) -> ast.Topology:
        name, base, *statements = of
        self._small(name, "a topology")
        return ast.Topology(name, base, tuple(statements), span=self._at(meta))

    def base(self, _meta: Meta, of: Children) -> ast.Word | ast.Text:
        return of[0]  # type: ignore[no-any-return]

    def experiment(self, meta: Meta, of: Children) -> ast.Experiment:
        self._small(of[0], "an experiment")
        return ast.Experiment(of[0], tuple(of[1:]), span=self._at(meta))

    def doc(self, meta: Meta, of: Children) -> ast.Doc:
        return ast.Doc(of[0], span=self._at(meta))

    def model(self, meta: Meta, of: Children) -> ast.Model:
        return ast.Model(of[0], span=self._at(meta))

    def target(self, meta: Meta, of: Children) -> ast.Target:
        return ast.Target(tuple(of), span=self._at(meta))

    def context(self, meta: Meta, of: Children) -> ast.Context:
        return ast.Context(of[0], span=self._at(meta))

    def param(self, meta: Meta, of: Children) -> ast.Param:
        name = of[0]
        if not name.text.isupper():
            shout = name.text.upper()
            message = f"the parameter `{name}` is not in capitals"
            self.findings.append(error("param.case", message, name.span, help=f"write `{shout}`"))
        return ast.Param(name, of[1], span=self._at(meta))

    def features(self, meta: Meta, of: Children) -> ast.Features:
        return ast.Features(of[0], span=self._at(meta))

    def chunk(self, meta: Meta, of: Children) -> ast.Chunk:
        self._small(ast.Word(of[0].name, span=of[0].span), "a chunk")
        return ast.Chunk(of[0], tuple(of[1:]), span=self._at(meta))

    def tap(self, meta: Meta, of: Children) -> ast.Tap:
        return ast.Tap(tuple(of), span=self._at(meta))

    def functions(self, meta: Meta, of: Children) -> ast.Functions:
        return ast.Functions(tuple(of), span=self._at(meta))

    def allow(self, meta: Meta, of: Children) -> ast.Allow:
        return ast.Allow(*of, span=self._at(meta))

    def rules(self, meta: Meta, of: Children) -> ast.Rules:
        return ast.Rules(str(of[0]), tuple(of[1:]), span=self._at(meta))

    def expect(self, meta: Meta, of: Children) -> ast.Expect:
        return ast.Expect(tuple(of), span=self._at(meta))

    def status(self, meta: Meta, of: Children) -> ast.Status:
        state, date, record = of
        return ast.Status(state, date and str(date), record, span=self._at(meta))

    def measured(self, meta: Meta, of: Children) -> ast.Measured:
        return ast.Measured(str(of[0]), of[1], span=self._at(meta))

    def rule(self, meta: Meta, of: Children) -> ast.Rule:
        groups = tuple(one for one in of if isinstance(one, ast.Group))
        return ast.Rule(groups, tuple(of[len(groups) :]), span=self._at(meta))

    def group(self, meta: Meta, of: Children) -> ast.Group:
        return ast.Group(tuple(of), span=self._at(meta))

    def stack(self, meta: Meta, of: Children) -> ast.Stack:
        return ast.Stack(tuple(of), span=self._at(meta))

    def clause(self, meta: Meta, of: Children) -> ast.Clause:
        return ast.Clause(str(of[0]), of[1], span=self._at(meta))

    def budget(self, meta: Meta, of: Children) -> ast.Budget:
        *words, relation, value = of
        measure = " ".join(str(word) for word in words)
        return ast.Budget(measure, str(relation), value, span=self._at(meta))

    def record(self, meta: Meta, of: Children) -> ast.Record:
        return ast.Record(tuple(of), span=self._at(meta))

    def entry(self, meta: Meta, of: Children) -> ast.Entry:
        because = self.source.text.startswith("because", meta.start_pos)
        words = tuple(str(word) for word in of[:-1])
        return ast.Entry(("because",) * because + words, of[-1], span=self._at(meta))

    def call(self, meta: Meta, of: Children) -> ast.Call:
        arguments = tuple(one for one in of[1:] if one is not None)
        return ast.Call(str(of[0]), arguments, span=self._at(meta))

    def argument(self, meta: Meta, of: Children) -> ast.Argument:
        name, value = of
        return ast.Argument(name and str(name), value, span=self._at(meta))

    def items(self, meta: Meta, of: Children) -> ast.Items:
        return ast.Items(tuple(of), span=self._at(meta))

    def _small(self, name: ast.Word, what: str) -> None:
        """Capitals are kept for parameters."""
        if name.text != name.text.lower():
            message = f"the name of {what} is in small letters, and `{name}` is not"
            small = name.text.lower()
            self.findings.append(error("syntax.name", message, name.span, help=f"write `{small}`"))
