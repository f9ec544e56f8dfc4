"""JSON Schema, in the dialect of 2020-12, of attrs classes and typed dictionaries.

Every field is required and no other is allowed, as the strict reader of manifests has it.
"""

from inspect import cleandoc
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints, is_typeddict

import attrs

DIALECT = "https://json-schema.org/draft/2020-12/schema"

_PLAIN: dict[Any, dict[str, Any]] = {  # types to JSON values
    int: {"type": "integer"},
    float: {"type": "number"},
    str: {"type": "string"},
    bool: {"type": "boolean"},
    NoneType: {"type": "null"},
}


def schema_of(kind: type, title: str) -> dict[str, Any]:  # JSON values
    """The schema of one class, with the classes that it holds under `$defs`."""
    defs: dict[str, Any] = {}  # JSON values
    whole = _object(kind, defs)
    return {"$schema": DIALECT, "title": title, **whole, "$defs": dict(sorted(defs.items()))}


def _object(kind: Any, defs: dict[str, Any]) -> dict[str, Any]:
    hints = get_type_hints(kind)
    names = list(hints) if is_typeddict(kind) else [one.name for one in attrs.fields(kind)]
    return {
        "description": cleandoc(kind.__doc__).partition("\n")[0],
        "type": "object",
        "properties": {name: _type(hints[name], defs) for name in names},
        "required": names,
        "additionalProperties": False,
    }


def _type(kind: Any, defs: dict[str, Any]) -> dict[str, Any]:
    origin, inner = get_origin(kind), get_args(kind)
    if kind in _PLAIN:
        return _PLAIN[kind]
    if is_typeddict(kind) or attrs.has(kind):
        return _reference(kind, defs)
    if origin is Literal:
        return {"enum": list(inner)}
    if origin in (Union, UnionType):
        return {"anyOf": [_type(one, defs) for one in inner]}
    if origin is dict:
        return {"type": "object", "additionalProperties": _type(inner[1], defs)}
    if origin in (list, tuple):
        return _array(kind, defs)
    message = f"{kind} has no JSON Schema"
    raise TypeError(message)


def _array(kind: Any, defs: dict[str, Any]) -> dict[str, Any]:
    """A list of one type, or of as many values as a tuple names types."""
    inner = get_args(kind)
    if get_origin(kind) is list or inner[-1] is ...:
        return {"type": "array", "items": _type(inner[0], defs)}
    items = [_type(one, defs) for one in inner]
    return {"type": "array", "prefixItems": items, "minItems": len(items), "items": False}


def _reference(kind: Any, defs: dict[str, Any]) -> dict[str, str]:
    """A class by name, defined once."""
    name = kind.__name__
    if name not in defs:
        defs[name] = {}  # so that a class may hold itself
        defs[name] = _object(kind, defs)
    return {"$ref": f"#/$defs/{name}"}
