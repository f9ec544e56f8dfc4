"""Text to tree, with every syntax error of the text.

Tokens come first; the LALR parser is fed one at a time. On an error it skips to the end of the
statement and takes a placeholder in its stead, so that the next statement is read as usual.
"""

import os
from functools import cache
from pathlib import Path
from typing import Any

from lark import Lark, Token, Tree
from lark.exceptions import UnexpectedToken
from lark.parsers.lalr_interactive_parser import InteractiveParser

from topoc.dsl import ast
from topoc.dsl.diagnostic import Diagnostic, error
from topoc.dsl.source import Source, Span
from topoc.dsl.tokens import TOP, Placed, keyword, tokenize
from topoc.dsl.tree import ToAst

_END = Token("_END", "")
_LISTED = 200  # errors of one text
_HEADS = {keyword(word) for word in TOP}
_BAD = ("NEWLINE", "BAD", "BAD_LAYERS", "BAD_NUMBER", "BAD_NAME", "BAD_TEXT")


class _KeepTerminals:
    """Tells lark to keep terminals that no rule names; tokens.py takes them out."""

    always_accept = _BAD

    def process(self, stream: Any) -> Any:  # lark's own token iterators
        return stream


def parse(source: Source) -> tuple[ast.File, tuple[Diagnostic, ...]]:
    """The tree of a text, without the statements that did not parse, and the errors in those."""
    placed, findings = tokenize(raw_tokens(source), source)
    lines = {_line(one) for one in findings}
    run = _Run(source, placed)
    tree = run.tree()
    findings += [one for one in run.findings if _line(one) not in lines]
    names = ToAst(source)
    file = names.transform(tree)
    return file, _first(sorted([*findings, *names.findings], key=_line))


def _first(findings: list[Diagnostic]) -> tuple[Diagnostic, ...]:
    """All findings, or the first and how many more there are."""
    if len(findings) <= _LISTED:
        return tuple(findings)
    message = f"{len(findings) - _LISTED} more errors follow, which are not listed"
    at = findings[_LISTED].at.at
    help_ = "mend the first ones; the rest may follow from them"
    return (*findings[:_LISTED], error("syntax.unexpected", message, at, help=help_))


def raw_tokens(source: Source) -> list[Token]:
    """The tokens of a text as they are spelled, line ends among them."""
    return list(_lark().lex(source.text))


def _line(finding: Diagnostic) -> int:
    """The line of a finding in a text; misspelled words hide what follows from them."""
    return finding.at.at.line if isinstance(finding.at.at, Span) else 0


@cache
def _lark() -> Lark:
    """The parser, with its table from the user's cache folder where there is one."""
    grammar = Path(__file__).with_name("grammar.lark").read_text("utf-8")
    return Lark(
        grammar,
        parser="lalr",
        lexer="basic",
        propagate_positions=True,
        postlex=_KeepTerminals(),
        cache=_table() or False,
    )


def _table() -> str:
    """Where the LALR table is kept; nothing if that folder can't be written."""
    root = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "topoc"
    try:
        root.mkdir(parents=True, exist_ok=True)
    except OSError:
        return ""
    return str(root / "grammar.lalr") if os.access(root, os.W_OK) else ""


class _Run:
    """One pass of the parser over prepared tokens."""

    def __init__(self, source: Source, placed: list[Placed]) -> None:
        self.source = source
        self.placed = placed
        self.findings: list[Diagnostic] = []
        self.parser: InteractiveParser = _lark().parse_interactive()

    def tree(self) -> Tree[Token]:
        at = 0
        while at < len(self.placed):
            try:
                self.parser.feed_token(self.placed[at].token)
            except UnexpectedToken as unexpected:
                self.findings.append(self._complaint(at, unexpected))
                at = self._recover(at)
            at += 1
        return self.parser.feed_token(Token("$END", ""))  # type: ignore[no-any-return]

    def _complaint(self, at: int, unexpected: UnexpectedToken) -> Diagnostic:
        from topoc.dsl.complaint import complaint  # most texts give no cause for one

        return complaint(self.source, self.placed, at, unexpected)

    def _recover(self, at: int) -> int:
        """Take a placeholder for the statement around `at`; the index of its last token."""
        state = self.parser.parser_state
        while not self._takes_placeholder(self.placed[at].depth):
            state.state_stack.pop()
            state.value_stack.pop()
        self.parser.feed_token(Token("_BROKEN", ""))
        self.parser.feed_token(_END)
        depth = self._open_braces()
        return self._end_of_statement(at, depth) if depth else self._next_topology(at)

    def _takes_placeholder(self, depth: int) -> bool:
        """Whether a statement may stand here, in a block that is open where the error is."""
        state = self.parser.parser_state
        fits = "_BROKEN" in state.parse_conf.states[state.position]
        return fits and self._open_braces() <= depth

    def _open_braces(self) -> int:
        kinds = [v.type for v in self.parser.parser_state.value_stack if isinstance(v, Token)]
        return kinds.count("_LBRACE") - kinds.count("_RBRACE")

    def _end_of_statement(self, at: int, depth: int) -> int:
        later = range(at, len(self.placed))
        ends = (i for i in later if self.placed[i] == Placed(_END, depth))
        return next(ends, len(self.placed))

    def _next_topology(self, at: int) -> int:
        """Read on inside the braces of a header that did not parse, else at the next header."""
        head = self._head(at)
        for index in range(at, len(self.placed)):
            token, depth = self.placed[index].token, self.placed[index].depth
            if token.type == "_LBRACE" and depth == 0 and head is not None and index > head:
                named = self.placed[head + 1].token
                self.parser.feed_token(self.placed[head].token)
                self.parser.feed_token(named.update(type="WORD"))
                return index - 1
            if token.type in _HEADS and index > at:
                return index - 1
        return len(self.placed)

    def _head(self, at: int) -> int | None:
        """The keyword of the header that `at` is in."""
        while at >= 0 and self.placed[at].token.type != "_END":
            if self.placed[at].token.type in _HEADS:
                return at
            at -= 1
        return None
