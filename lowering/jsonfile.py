"""JSON files that others wrote: bounded, with no key twice, and in words where they are wrong."""

import json
from pathlib import Path

from topoc.dsl.diagnostic import Place, TopocError, error

LARGEST_FILE = 1 << 25

_KINDS = {bool: "a flag", int: "a number", float: "a number", str: "text", list: "a list"}


def load(file: Path, what: str = "config", trouble: str = "model") -> dict[str, object]:
    """The JSON object in a file; `trouble` is what its diagnostics are about."""
    place = Place(str(file))
    if file.exists() and not file.is_file():  # a pipe would be waited for, maybe without end
        found = f"the {what} is a folder" if file.is_dir() else f"the {what} is no file"
        way = f"name the file that is the {what}"
        raise TopocError(error(f"{trouble}.unreadable", found, place, help=way))
    try:
        with file.open("rb") as stream:
            text = stream.read(LARGEST_FILE + 1)
    except FileNotFoundError:
        way = f"name the {what} or the folder it is in"
        found = f"there is no {what} here"
        raise TopocError(error(f"{trouble}.missing", found, place, help=way)) from None
    except (OSError, ValueError) as problem:  # a path that holds a null character is a ValueError
        reason = problem.strerror if isinstance(problem, OSError) else str(problem)
        found = f"the {what} does not open: {reason}"
        way = f"see that the {what} may be read"
        raise TopocError(error(f"{trouble}.unreadable", found, place, help=way)) from None
    try:
        return _object(text)
    except (ValueError, RecursionError) as problem:
        found = f"the {what} is no JSON object: {str(problem).rstrip('.')}"
        way = f"write the {what} anew, or copy it from where it was made"
        raise TopocError(error(f"{trouble}.unreadable", found, place, help=way)) from None


def _object(text: bytes) -> dict[str, object]:
    if len(text) > LARGEST_FILE:
        message = f"it is larger than {LARGEST_FILE} bytes"
        raise ValueError(message)
    value = json.loads(text, object_pairs_hook=once)
    if not isinstance(value, dict):
        message = f"it holds {named(value)}"
        raise ValueError(message)  # noqa: TRY004 - like all else that is no such file
    return value


def once(pairs: list[tuple[str, object]]) -> dict[str, object]:
    """A JSON object; a key that it holds twice is a `ValueError`."""
    found = dict(pairs)
    if len(found) < len(pairs):
        keys = [key for key, _ in pairs]
        twice = next(key for key in keys if keys.count(key) > 1)
        message = f"key `{twice}` stands twice in one object"
        raise ValueError(message)
    return found


def named(value: object) -> str:
    """A JSON value in a few words."""
    if value is None:
        return "null"
    if isinstance(value, dict):
        return "an object"
    if isinstance(value, bool | int | float):
        return json.dumps(value)[:40]
    return f"{_KINDS[type(value)]} ({json.dumps(value)[:40]})"
