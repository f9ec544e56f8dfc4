"""Did you mean: close names, and the phrase that offers them."""

from collections.abc import Iterable

_MOST = 4
_COMPARED = 1000  # names; among more the search takes longer than it helps
_LONGEST = 20  # names in a list; more are cut


def close(word: str, known: Iterable[str]) -> tuple[str, ...]:
    """Up to four known names that look like `word`, the closest first."""
    from difflib import get_close_matches  # most runs suggest nothing

    names = sorted(set(known))
    if len(names) > _COMPARED:
        return ()
    return tuple(get_close_matches(word, names, n=_MOST, cutoff=0.6))


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
    if what == "there are" and len(names) == 1:
        what = "there is"
    return f"{what} {_all(names)}" if names else ""


def _all(names: tuple[str, ...]) -> str:
    """All names, or the first and how many more there are."""
    if len(names) <= _LONGEST:
        return quoted(names, "and")
    first = ", ".join(f"`{name}`" for name in names[:_LONGEST])
    return f"{first} and {len(names) - _LONGEST} more"
