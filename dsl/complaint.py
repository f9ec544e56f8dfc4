"""Words for a token that does not fit: what was expected, and what is often meant by it."""

from itertools import pairwise

from lark import Token
from lark.exceptions import UnexpectedToken

from topoc.dsl.diagnostic import Diagnostic, error
from topoc.dsl.source import Source, Span
from topoc.dsl.suggest import advice
from topoc.dsl.tokens import RESERVED, STATEMENTS, TOP, Placed, keyword

_SIGNS = {
    "_EQUALS": "=",
    "_PLUS": "+",
    "_COMMA": ",",
    "_COLON": ":",
    "_LBRACE": "{",
    "_RBRACE": "}",
    "_LPAR": "(",
    "_RPAR": ")",
    "_LBRACKET": "[",
    "_RBRACKET": "]",
}
_WORDS = {
    "WORD": "a word",
    "TEXT": "a text in double quotes",
    "NUMBER": "a number",
    "LAYERS": "layers such as `L0-7`",
    "DATE": "a date such as `2026-04-13`",
    "CODE": "a lint code such as `state.update`",
    "RELATION": "a relation such as `<=`",
    "_END": "the end of the line",
    **{kind: f"`{sign}`" for kind, sign in _SIGNS.items()},
    **{keyword(word): f"`{word}`" for word in (*RESERVED, *STATEMENTS, *TOP)},
}

_FORMS = {
    "topology": "topology NAME { … }",
    "experiment": "experiment NAME { … }",
    "doc": 'doc "…"',
    "status": "status STATE on DATE { … }",
    "model": 'model "config.json"',
    "target": "target UNIT SYSTEM CHIP",
    "features": "features PROFILE",
    "param": "param NAME = NUMBER",
    "context": "context NUMBER",
    "attention": "attention { SELECTOR: KIND }",
    "kv": "kv { SELECTOR: CLAUSE, CLAUSE }",
    "chunk": "chunk NAME = PART + PART",
    "tap": "tap L8, L17",
    "functions": "functions decode, prefill(tokens = NUMBER)",
    "quantize": "quantize { SELECTOR: SCHEME }",
    "expect": "expect { MEASURE <= NUMBER }",
    "allow": 'allow CODE because "…"',
    "measured": "measured on DATE { … }",
}


def complaint(
    source: Source, placed: list[Placed], at: int, unexpected: UnexpectedToken
) -> Diagnostic:
    """The one error that an unexpected token is reported as."""
    token, depth = placed[at].token, placed[at].depth
    span = Span(source, token.start_pos or 0, token.end_pos or 0)
    expected = {kind for kind in unexpected.expected if kind in _WORDS}
    head = _head(placed, at)
    if at == head or "_TOPOLOGY" in expected or "_DOC" in expected:
        return _statement(token, span, depth, expected)
    if token.type == "_END":
        message = f"the line ends where {_listed(expected)} is expected"
        help_ = _incomplete(expected) or _form(placed, head, at, expected)
        return error("syntax.incomplete", message, span, help=help_)
    if token.type in {"_LBRACE", "_RBRACE"}:
        message = f"this brace is unexpected; expected {_listed(expected)}"
        return error("syntax.brace", message, span, help=_form(placed, head, at, expected))
    return _within(placed, head, at, span, expected)


def _head(placed: list[Placed], at: int) -> int:
    """Where the statement around `at` begins."""
    while at > 0 and placed[at - 1].token.type not in {"_END", "_LBRACE", "_RBRACE"}:
        at -= 1
    return at


def _statement(token: Token, span: Span, depth: int, expected: set[str]) -> Diagnostic:
    if token.type == "_RBRACE":
        return error("syntax.brace", "this `}` closes nothing", span, help="remove it")
    if depth == 0:
        message = f"`{token}` stands outside any topology"
        help_ = advice(token, TOP, "a file holds") if token not in STATEMENTS else ""
        lost = "a `}` above may close the topology too early"
        return error("syntax.statement", message, span, help=help_ or lost)
    if depth == 1:
        message = f"`{token}` begins no statement"
        return error("syntax.statement", message, span, help=advice(token, STATEMENTS))
    message = f"`{token}` can't begin a line of this block"
    return error("syntax.unexpected", message, span, help=_line_form(expected))


def _incomplete(expected: set[str]) -> str:
    if "_RPAR" in expected or "_RBRACKET" in expected:
        return "close the parenthesis; a line goes on only inside one"
    return ""


def _form(placed: list[Placed], head: int, at: int, expected: set[str]) -> str:
    """How the statement that begins at `head` is written."""
    first = placed[head].token
    if first.type == keyword(first) and first in _FORMS:
        return f"write `{_FORMS[first]}`"
    return _line_form(expected | {one.token.type for one in placed[head:at]})


def _line_form(kinds: set[str]) -> str:
    """How a line of a block is written, by what it holds or may hold."""
    if "_COLON" in kinds:
        return "a rule is written `SELECTOR: SETTING`, with commas between settings"
    if "RELATION" in kinds:
        return "a budget is written `MEASURE <= NUMBER`"
    return 'a line is written `WORD "…"`, or with a number'


def _within(placed: list[Placed], head: int, at: int, span: Span, expected: set[str]) -> Diagnostic:
    """An error in the middle of a statement."""
    token, first = placed[at].token, placed[head].token
    if _has_colon(placed[head:at]) and (token.type == "_COLON" or _rule_follows(placed, at)):
        return _second_rule([one.token for one in placed[head:at]], span)
    if "_END" in expected and token in STATEMENTS:
        message = f"`{token}` begins a second statement on this line"
        return error("syntax.line", message, span, help="give each statement a line of its own")
    if token in RESERVED and "WORD" in expected:
        message = f"`{token}` is reserved and names nothing"
        return error("syntax.name", message, span, help="choose another name")
    if token.type == "LAYERS" and expected == {"WORD"}:
        message = f"a name can't look like a layer, as `{token}` does"
        return error("syntax.name", message, span, help="choose another name")
    if token.type == "_EQUALS" and at == head + 1:
        message = f"`{first}` takes its value without `=`"
        following = placed[at + 1].token
        return error("syntax.unexpected", message, span, help=f"write `{first} {following}`")
    message = f"`{token}` is unexpected here; expected {_listed(expected)}"
    return error("syntax.unexpected", message, span, help=_form(placed, head, at, expected))


def _has_colon(placed: list[Placed]) -> bool:
    return any(one.token.type == "_COLON" for one in placed)


def _rule_follows(placed: list[Placed], at: int) -> bool:
    """Whether what is left of a line has a colon, as a rule has."""
    while at < len(placed) and placed[at].token.type not in {"_END", "_LBRACE", "_RBRACE"}:
        if placed[at].token.type == "_COLON":
            return True
        at += 1
    return False


def _second_rule(tokens: list[Token], span: Span) -> Diagnostic:
    pairs = pairwise(tokens)
    if any(a.type == "_COMMA" and (a.line or 0) < (b.line or 0) for a, b in pairs):
        message = "this rule is joined to the one above by the comma that ends that line"
        return error("syntax.line", message, span, help="remove that comma")
    message = "two rules stand on one line"
    advice_ = "give each rule a line of its own; commas join settings of one selector"
    return error("syntax.line", message, span, "a second rule begins here", help=advice_)


def _listed(expected: set[str]) -> str:
    """What would have fitted, shortest first; long lists are cut."""
    order = list(_WORDS)
    words = [_WORDS[kind] for kind in sorted(expected, key=order.index)]
    if len(words) > 5:
        words = [*words[:4], "more"]
    return " or ".join([", ".join(words[:-1]), words[-1]] if words[1:] else words) or "nothing"
