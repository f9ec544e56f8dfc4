"""The canonical layout of a text: indents, spaces and columns; words and comments stay."""

from collections.abc import Iterator, Sequence

from attrs import define, field
from lark import Token

from topoc.dsl.parser import raw_tokens
from topoc.dsl.source import Source
from topoc.dsl.tokens import BLOCKS, STATEMENTS

_INDENT = 2
_TIGHT_BEFORE = {"_COMMA", "_COLON", "_RPAR", "_RBRACKET"}
_TIGHT_AFTER = {"_LPAR", "_LBRACKET"}
_ALIGNED = {"doc", "status", "model", "target", "features", "param", "context"}


@define(eq=False, repr=False)
class _Line:
    """One line of the text: its tokens, its comment, and how deep it stands."""

    tokens: list[Token]
    comment: str
    depth: int = 0
    block: str = ""
    continues: int = 0  # columns beyond the indent, for a line that goes on

    @property
    def blank(self) -> bool:
        return not self.tokens and not self.comment


def lay_out(source: Source) -> str:
    """The text in canonical layout. The text must parse."""
    lines = list(_lines(source))
    _place(lines)
    out: list[str] = []
    for group in _groups(lines):
        out += _columns(group)
    return "\n".join(_squeezed(out)) + "\n" if out else ""


def _lines(source: Source) -> Iterator[_Line]:
    """The lines, each with the tokens that begin on it."""
    by_line: dict[int, list[Token]] = {}
    for token in raw_tokens(source):
        if token.type != "NEWLINE":
            by_line.setdefault(token.line or 0, []).append(token)
    for number in range(1, len(source.line_starts) + 1):
        tokens = by_line.get(number, [])
        start = source.line_starts[number - 1]
        end = max((token.end_pos or 0 for token in tokens), default=start)
        rest = source.line_text(number)[end - start :].strip().lstrip("\ufeff")
        yield _Line(tokens, rest)


@define(eq=False, repr=False)
class _Walk:
    """Where a walk over lines stands."""

    depth: int = 0
    parens: int = 0
    blocks: list[str] = field(factory=list)
    hang: int = 0
    last: str = "_END"


def _place(lines: list[_Line]) -> None:
    """Give each line its depth, block and hanging indent."""
    walk = _Walk()
    for line in lines:
        kinds = [token.type for token in line.tokens]
        hangs = walk.parens > 0 or walk.last in {"_PLUS", "_COMMA", "_EQUALS"}
        line.continues = walk.hang if hangs or kinds[:1] == ["_PLUS"] else 0
        line.depth = walk.depth - (kinds[:1] == ["_RBRACE"])
        line.block = walk.blocks[-1] if walk.blocks else ""
        for kind in kinds:
            _advance(walk, kind, line)
        if kinds:
            walk.last = kinds[-1]
            if not line.continues:
                walk.hang = len(line.tokens[0]) + 1


def _advance(walk: _Walk, kind: str, line: _Line) -> None:
    if kind == "_LBRACE":
        walk.depth += 1
        walk.blocks.append(str(line.tokens[0]))
    elif kind == "_RBRACE":
        walk.depth -= 1
        del walk.blocks[-1:]
    elif kind in {"_LPAR", "_LBRACKET"}:
        walk.parens += 1
    elif kind in {"_RPAR", "_RBRACKET"}:
        walk.parens -= 1


def _groups(lines: Sequence[_Line]) -> Iterator[list[_Line]]:
    """Runs of lines whose columns are aligned with each other."""
    group: list[_Line] = []
    for line in lines:
        if group and _kind(line) != _kind(group[-1]):
            yield group
            group = []
        group.append(line)
    if group:
        yield group


def _kind(line: _Line) -> tuple[str, int]:
    """What a line has columns in common with."""
    if not line.tokens or line.continues:
        return "", line.depth
    head = str(line.tokens[0])
    if line.depth == 1 and head in STATEMENTS:
        return ("statement" if head in _ALIGNED else head), line.depth
    inside = BLOCKS.get(line.block, "") if line.depth > 1 else ""
    return ("" if head == "}" else inside), line.depth


def _split(line: _Line) -> int:
    """Before which token the second column begins; 0 for lines of one column."""
    what, kinds = _kind(line)[0], [token.type for token in line.tokens]
    marks = {"rules": "_COLON", "budgets": "RELATION", "chunk": "_EQUALS"}
    if what == "statement":
        return 1
    if what in marks and marks[what] in kinds:
        at = _outside_parens(kinds, marks[what])
        return at + (what == "rules")
    return len(kinds) - 1 if what == "record" else 0


def _outside_parens(kinds: Sequence[str], wanted: str) -> int:
    deep = 0
    for at, kind in enumerate(kinds):
        deep += (kind == "_LPAR") - (kind == "_RPAR")
        if kind == wanted and deep == 0:
            return at
    return 0


def _columns(group: Sequence[_Line]) -> Iterator[str]:
    """The lines of one group, their second columns aligned."""
    splits = [_split(line) for line in group]
    firsts = [_joined(line.tokens[:at]) for line, at in zip(group, splits, strict=True)]
    width = max((len(first) for first in firsts), default=0)
    for line, at, first in zip(group, splits, firsts, strict=True):
        text = _joined(line.tokens[at:])
        if at and text:
            text = f"{first:<{width}} {text}"
        margin = " " * (_INDENT * line.depth + line.continues)
        comment = f"  {line.comment}" if line.comment and text else line.comment
        yield f"{margin}{text}{comment}".rstrip()


def _joined(tokens: Sequence[Token]) -> str:
    """Tokens with the spaces between them."""
    out = ""
    for at, token in enumerate(tokens):
        previous = tokens[at - 1].type if at else ""
        tight = token.type in _TIGHT_BEFORE or previous in _TIGHT_AFTER or token.type == "_LPAR"
        out += str(token) if tight or not at else f" {token}"
    return out


def _squeezed(lines: Sequence[str]) -> Iterator[str]:
    """Lines without blank ones at the ends, at a block's edges, or in a row."""
    kept: list[str] = []
    for line in lines:
        if not line and (not kept or not kept[-1] or kept[-1].endswith("{")):
            continue
        if line.strip() == "}" and kept and not kept[-1]:
            kept.pop()
        kept.append(line)
    while kept and not kept[-1]:
        kept.pop()
    yield from kept
