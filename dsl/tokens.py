"""Text to tokens: the words that stand where keywords stand, and one end for each statement.

The grammar has one terminal for words. What makes a word a keyword is its place, the head of a line
at the top or directly in a topology, so that `chunk head = …` and `kv io per step` need no quotes.
"""

from collections.abc import Iterator, Sequence

from attrs import define, field, frozen
from lark import Token

from topoc.dsl.diagnostic import Diagnostic, error
from topoc.dsl.plain import Plain
from topoc.dsl.source import Source, Span
from topoc.dsl.spelling import mend

TOP = ("topology", "experiment")
BLOCKS = {
    "attention": "rules",
    "kv": "rules",
    "quantize": "rules",
    "expect": "budgets",
    "status": "record",
    "measured": "record",
}
STATEMENTS = (
    *("doc", "status", "model", "target", "features", "param", "context", "attention", "kv"),
    *("chunk", "tap", "functions", "quantize", "expect", "allow", "measured"),
)
RESERVED = ("extends", "on", "in", "because")
_GOES_ON = {"_PLUS", "_COMMA", "_EQUALS"}
_OPENS = {"_LPAR", "_LBRACKET"}
_CLOSES = {"_RPAR", "_RBRACKET"}
_DEEPEST = 20  # brackets within brackets
_SPELLED = {"attention": "ATTENTION", "kv": "KV", "quantize": "QUANTIZE"}


@frozen(eq=False, repr=False)
class Placed(Plain):
    """A token and the number of braces open before it."""

    token: Token
    depth: int


def keyword(word: str) -> str:
    """The terminal of a keyword."""
    return _SPELLED.get(word, f"_{word.upper()}")


def tokenize(raw: Sequence[Token], source: Source) -> tuple[list[Placed], list[Diagnostic]]:
    """Tokens as the grammar wants them, and what was misspelled in them."""
    findings: list[Diagnostic] = []
    lines = _Lines(list(mend(raw, source, findings)), source, findings)
    return lines.run(), findings


@define(eq=False, repr=False)
class _Lines:
    """A walk over tokens that knows how deep it is and where lines begin."""

    raw: list[Token]
    source: Source
    findings: list[Diagnostic]
    following: list[int | None] = field(factory=list)  # the next token that ends no line
    at: int = 0
    parens: int = 0
    is_deep: bool = False
    block: str = ""
    opened: list[Token] = field(factory=list)
    out: list[Placed] = field(factory=list)

    def run(self) -> list[Placed]:
        self.following = _following(self.raw)
        for at, token in enumerate(self.raw):
            self.at = at
            self._step(token)
        self.at = len(self.raw)
        self._end()
        self._close_to(0)
        return self.out

    def _step(self, token: Token) -> None:
        if token.type == "NEWLINE":
            self._newline()
        elif token.type == "_LBRACE" and len(self.opened) < _DEEPEST:
            self.parens = 0
            self._put(token)
            self.opened.append(token)
        elif token.type == "_RBRACE":
            self.parens = 0
            self._end()
            del self.opened[-1:]
            self._put(token)
        elif token.type == "_LBRACE" or (token.type in _OPENS and self.parens == _DEEPEST):
            self._too_deep(token)
        else:
            self.parens += (token.type in _OPENS) - (token.type in _CLOSES and self.parens > 0)
            self._put(self._retag(token))

    def _too_deep(self, token: Token) -> None:
        """Leave out a bracket that no statement has use for; the first of a text is reported."""
        if not self.is_deep:
            span = Span(self.source, token.start_pos or 0, token.end_pos or 0)
            message = f"brackets are nested more than {_DEEPEST} deep"
            help_ = "close those that are open; no statement needs so many"
            self.findings.append(error("syntax.unexpected", message, span, help=help_))
        self.is_deep = True

    def _put(self, token: Token) -> None:
        self.out.append(Placed(token, len(self.opened)))

    def _insert(self, kind: str) -> None:
        place = self.out[-1].token.end_pos
        self._put(Token(kind, "", place, end_pos=place))

    def _newline(self) -> None:
        """End the statement, unless it goes on in the next line."""
        following = self.following[self.at]
        kind = self.raw[following].type if following is not None else ""
        fresh = following is None or kind == "_RBRACE" or self._starts_statement(following)
        if self.parens and not fresh:
            return
        self.parens = 0
        dangling = bool(self.out) and self.out[-1].token.type in _GOES_ON
        if kind != "_PLUS" and (fresh or not dangling):
            self._end()

    def _end(self) -> None:
        if self.out and self.out[-1].token.type not in {"_END", "_LBRACE"}:
            self._insert("_END")

    def _retag(self, token: Token) -> Token:
        if token.type != "WORD":
            return token
        if not self.out or self.out[-1].token.type in {"_END", "_LBRACE"}:
            self._close_to(self._statement_depth(token))
            words = {0: TOP, 1: STATEMENTS}.get(len(self.opened), ())
            if token in words:
                self.block = BLOCKS.get(token, "")
                return token.update(type=keyword(token))
        return token.update(type=keyword(token)) if token in RESERVED else token

    def _close_to(self, depth: int | None) -> None:
        """Insert each `}` that is missing before a line that can only be a statement."""
        while depth is not None and len(self.opened) > depth:
            self._end()
            brace = self.opened.pop()
            self._insert("_RBRACE")
            self._insert("_END")
            span = Span(self.source, brace.start_pos or 0, brace.end_pos or 0)
            place = "the end of the file" if self.at >= len(self.raw) else self._line_number()
            self.findings.append(
                error(
                    "syntax.brace",
                    f"the block that opens here is not closed before {place}",
                    span,
                    help="add a `}` where the block ends",
                )
            )

    def _line_number(self) -> str:
        return f"line {self.raw[self.at].line}"

    def _starts_statement(self, at: int) -> bool:
        """Whether the line at `at` is a statement, for a line before it that was left open."""
        following = self.following[at]
        return (
            self.raw[at] in {*STATEMENTS, *TOP}
            and following is not None
            and self.raw[following].type in {"WORD", "TEXT", "NUMBER", "_LBRACE"}
        )

    def _statement_depth(self, head: Token) -> int | None:
        """The depth at which the line of `head` must stand, if there is only one."""
        if head not in TOP and (len(self.opened) < 2 or head not in STATEMENTS):
            return None
        line = list(self._line())
        kinds = [token.type for token in line]
        if head in TOP and kinds[1:2] == ["WORD"] and ("_LBRACE" in kinds or "extends" in line):
            return 0
        only_here = {
            "rules": "_COLON" not in kinds,
            "budgets": "RELATION" not in kinds,
            "record": "_LBRACE" in kinds or "_EQUALS" in kinds or kinds[-1] in {"WORD", "_RPAR"},
        }
        found = len(self.opened) > 1 and head in STATEMENTS and only_here.get(self.block, False)
        return 1 if found else None

    def _line(self) -> Iterator[Token]:
        for at in range(self.at, len(self.raw)):
            if self.raw[at].type == "NEWLINE":
                return
            yield self.raw[at]


def _following(raw: Sequence[Token]) -> list[int | None]:
    """For each token, where the next one stands that is not a line end."""
    found: list[int | None] = [None] * len(raw)
    for at in range(len(raw) - 2, -1, -1):
        found[at] = at + 1 if raw[at + 1].type != "NEWLINE" else found[at + 1]
    return found
