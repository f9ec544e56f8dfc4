"""Tokens that are almost right: each is reported and replaced by what was probably meant."""

import json
import re
from collections.abc import Callable, Iterator, Sequence

from lark import Token

from topoc.dsl.diagnostic import Diagnostic, Edit, Label, Severity
from topoc.dsl.source import Source, Span

Mended = tuple[str, str, str, str]  # code, message, help, and the text that was meant ("" for none)


def mend(raw: Sequence[Token], source: Source, findings: list[Diagnostic]) -> Iterator[Token]:
    """The tokens with misspelled ones replaced; what was wrong goes to `findings`."""
    for token in raw:
        repair = _REPAIRS.get(token.type)
        if repair is None or (token.type == "TEXT" and unquote(token) is not None):
            yield token
            continue
        kind, mender = repair
        code, message, advice, meant = mender(str(token))
        span = Span(source, token.start_pos or 0, token.end_pos or 0)
        edits = (Edit(span, meant),) if meant and advice == f"write `{meant}`" else ()
        findings.append(
            Diagnostic(code, Severity.ERROR, message, Label(span), help=advice, fix=edits)
        )
        if kind:
            yield token.update(type=kind, value=meant)


def _layers(text: str) -> Mended:
    first, last = re.findall(r"\d+", text)[:2]
    meant = f"L{first}-{last}"
    return (
        "syntax.layers",
        f"`{text}` is no range of layers; a plain hyphen without spaces joins the two numbers",
        f"write `{meant}`",
        meant,
    )


def _number(text: str) -> Mended:
    meant = _plain_number(text)
    advice = f"write `{meant}`" if meant else "write digits, with at most one decimal point"
    if re.fullmatch(r"\d{4}-[\d-]+", text):
        advice = "dates are written `2026-04-13` or `2026-04`"
        return "syntax.number", f"`{text}` is no date", advice, "0"
    return "syntax.number", f"`{text}` is no number", advice, meant or "0"


def _plain_number(text: str) -> str:
    if re.fullmatch(r"\d{1,6}[kK]", text):
        return str(int(text[:-1]) * 1024)
    if re.fullmatch(r"\d+(_\d+)+", text):
        return text.replace("_", "")
    if re.fullmatch(r"\d+\.", text):
        return text[:-1]
    return ""


def _name(text: str) -> Mended:
    meant = text.replace("-", "_")
    return (
        "syntax.name",
        f"`{text}` is no name; names are letters, digits and `_`",
        f"write `{meant}`",
        meant,
    )


def _text(text: str) -> Mended:
    if text[0] != '"':
        meant = json.dumps(text.strip("'“”"), ensure_ascii=False)
        return "syntax.text", "texts stand between straight double quotes", f"write {meant}", meant
    message = "this text has no closing quote on its line"
    return "syntax.text", message, 'end it with `"`', json.dumps(text[1:].strip())


def _character(text: str) -> Mended:
    advice = "remove it; a statement ends with its line" if text == ";" else "remove it"
    return "syntax.character", f"the character {text!r} has no meaning here", advice, ""


def unquote(text: str) -> str | None:
    """What a quoted text says, or None if its escapes are not JSON's."""
    try:
        said = json.loads(text)
        said.encode()
    except ValueError:
        return None
    return str(said)


def _escape(_text: str) -> Mended:
    message = "this text has an escape or a character that JSON strings do not have"
    return "syntax.text", message, r"double each backslash, or use \n, \t, \u0041", json.dumps("")


_REPAIRS: dict[str, tuple[str, Callable[[str], Mended]]] = {
    "BAD_LAYERS": ("LAYERS", _layers),
    "BAD_NUMBER": ("NUMBER", _number),
    "BAD_NAME": ("WORD", _name),
    "BAD_TEXT": ("TEXT", _text),
    "TEXT": ("TEXT", _escape),
    "BAD": ("", _character),
}
