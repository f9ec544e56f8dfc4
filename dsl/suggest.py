"""Did you mean: close names, and the phrase that offers them."""

from collections.abc import Iterable

_MOST = 4


def close(word: str, known: Iterable[str]) -> tuple[str, ...]:
    """Up to four known names that look like `word`, the closest first."""
    from difflib import get_close_matches  # most runs suggest nothing

    return tuple(get_close_matches(word, sorted(set(known)), n=_MOST, cutoff=0.6))


def quoted(words: Iterable[str], last: str = "or") -> str:
    """`a`, `b` or `c`."""
    ticked = [f"`{word}`" for word in words]
    return f" {last} ".join([", ".join(ticked[:-1]), ticked[-1]] if ticked[1:] else ticked)


def advice(word: str, known: Iterable[str], what: str = "known are") -> str:
    """A help line: the close names if there are any, else all of them."""
    names = tuple(known)
    found = close(word, names)
    if found:
        return f"did you mean {quoted(found)}?"
    return f"{what} {quoted(names, 'and')}" if names else ""
