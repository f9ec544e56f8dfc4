"""The manifest as JSON: canonical text out; strict, and nothing guessed, in.

Every field is written, also where it holds its default, and every field must be there to be read.
"""

import json
from collections.abc import Callable
from functools import cache
from math import isfinite
from typing import Any, Literal, NoReturn, get_args, get_origin

import attrs
import cattrs
from cattrs.cols import homogenous_tuple_structure_factory, mapping_structure_factory
from cattrs.gen import make_dict_structure_fn, make_hetero_tuple_structure_fn

from topoc.dsl.diagnostic import Diagnostic, Place, TopocError, error
from topoc.lowering.manifest import SCHEMA, Manifest

REMEDY = "compile the bundle again"


def dumps(manifest: Manifest) -> str:
    """The canonical text: fields in the order of the class, tables by name, one final newline."""
    raw = _converter().unstructure(manifest)
    return json.dumps(_sorted(manifest, raw), indent=1, allow_nan=False) + "\n"


def loads(text: str, path: str) -> Manifest:
    """The manifest in `text`; `path` is where it came from, for diagnostics."""
    raw = _parsed(text, path)
    if not isinstance(raw, dict):
        raise TopocError(_problem("the manifest is not an object", path, ""))
    if raw.get("schema") != SCHEMA:
        found = json.dumps(raw.get("schema"))[:60] if "schema" in raw else "none"
        message = f"the manifest's schema is {found}, and this topoc reads `{SCHEMA}`"
        raise TopocError(error("bundle.schema", message, Place(path, "$.schema"), help=REMEDY))
    try:
        return _converter().structure(raw, Manifest)
    except (cattrs.BaseValidationError, cattrs.StructureHandlerNotFoundError) as found:
        told = cattrs.transform_error(found, format_exception=_told)
        problems = [one.rpartition(" @ ") for one in told]
        raise TopocError(*(_problem(what, path, at) for what, _, at in problems)) from found


def _problem(message: str, path: str, part: str) -> Diagnostic:
    return error("bundle.manifest", message, Place(path, part), help=REMEDY)


def _sorted(manifest: Manifest, raw: dict[str, Any]) -> dict[str, Any]:
    """Mappings in the order of their keys, so that equal manifests have equal text."""
    names = [f.name for f in attrs.fields(Manifest) if isinstance(getattr(manifest, f.name), dict)]
    return raw | {name: dict(sorted(raw[name].items())) for name in names}


def _parsed(text: str, path: str) -> Any:  # what JSON holds is looked at afterwards
    """The JSON value, with repeated keys and numbers beyond JSON refused."""
    try:
        return json.loads(text, object_pairs_hook=_object, parse_constant=_constant)
    except (ValueError, RecursionError) as found:
        why = "nests too deeply" if isinstance(found, RecursionError) else _clause(str(found))
        raise TopocError(_problem(f"the manifest is not JSON: {why}", path, "")) from found


def _clause(text: str) -> str:
    """The first line of a library's message, in our manner."""
    text = text.splitlines()[0].rstrip(".")
    return text[:1].lower() + text[1:]


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    keys = [key for key, _ in pairs]
    for key in keys:
        if keys.count(key) > 1:
            message = f"key `{key}` stands twice"
            raise ValueError(message)
    return dict(pairs)


def _constant(name: str) -> NoReturn:
    message = f"`{name}` is no JSON number"
    raise ValueError(message)


class _MismatchError(ValueError):
    """A value of another type than the field has; the message tells both."""


def _told(found: BaseException, _: Any) -> str:  # cattrs hands types and type aliases
    """One problem in words."""
    if isinstance(found, cattrs.ForbiddenExtraKeysError):
        names = ", ".join(f"`{one}`" for one in sorted(found.extra_fields))
        return f"the schema has no {names}"
    if isinstance(found, KeyError):
        return f"key `{found.args[0]}` is missing"
    return _clause(str(found))


def _shown(value: Any) -> str:
    """A JSON value, cut short."""
    text = json.dumps(value)
    return text if len(text) <= 40 else f"{text[:37]}..."


def _want(what: str, value: Any) -> NoReturn:
    message = f"found {_shown(value)} where {what} stands"
    raise _MismatchError(message)


def _int(value: Any, _: Any) -> int:
    return value if type(value) is int else _want("a whole number", value)


def _float(value: Any, _: Any) -> float:
    if type(value) not in (int, float) or abs(value) > 1e300 or not isfinite(value):
        _want("a finite number", value)
    return float(value)


def _str(value: Any, _: Any) -> str:
    return value if type(value) is str else _want("a text", value)


def _bool(value: Any, _: Any) -> bool:
    return value if type(value) is bool else _want("true or false", value)


def _literal(value: Any, kind: Any) -> Any:
    choices = get_args(kind)
    if type(value) is not str or value not in choices:
        _want("one of " + ", ".join(choices), value)
    return value


def _only(kind: type, what: str, make: Callable[..., Any]) -> Callable[[Any, Any], Any]:
    """A hook that refuses other JSON types before cattrs would convert them."""

    def structure(value: Any, target: Any) -> Any:
        if type(value) is not kind:
            _want(what, value)
        return make(value, target)

    return structure


def _class(kind: Any, converter: cattrs.Converter) -> Callable[[Any, Any], Any]:
    """A hook for one class of the manifest: all its keys, and no others."""
    made = make_dict_structure_fn(
        kind, converter, _cattrs_forbid_extra_keys=True, _cattrs_detailed_validation=True
    )
    defaulted = [f.name for f in attrs.fields(kind) if f.default is not attrs.NOTHING]

    def structure(value: dict[str, Any], target: Any) -> Any:
        missing: list[Exception] = [KeyError(name) for name in defaulted if name not in value]
        try:
            whole = made(value, target)
        except cattrs.ClassValidationError as found:
            problems = [*found.exceptions, *missing]
            raise cattrs.ClassValidationError(kind.__name__, problems, kind) from None
        if missing:
            raise cattrs.ClassValidationError(kind.__name__, missing, kind)
        return whole

    return _only(dict, "an object", structure)


@cache
def _converter() -> cattrs.Converter:
    """The strict converter: no coercion, no default, no unknown key."""
    converter = cattrs.Converter(detailed_validation=True, forbid_extra_keys=True)
    converter.register_structure_hook(bool, _bool)
    converter.register_structure_hook(int, _int)
    converter.register_structure_hook(float, _float)
    converter.register_structure_hook(str, _str)
    converter.register_unstructure_hook(float, float)  # so that 1 and 1.0 are written alike
    converter.register_structure_hook_func(_is_literal, _literal)
    for fits, factory, kind, what in (
        (_is_tuple_of_one_type, homogenous_tuple_structure_factory, list, "a list"),
        (_is_tuple_of_several, make_hetero_tuple_structure_fn, list, "a list"),
        (_is_mapping, mapping_structure_factory, dict, "an object"),
    ):
        converter.register_structure_hook_factory(fits, _checked_first(kind, what, factory))
    converter.register_structure_hook_factory(attrs.has, _class)
    return converter


def _is_literal(kind: Any) -> bool:
    """Whether it is Literal[...]."""
    origin: Any = get_origin(kind)  # typeshed forgets that it may be any class
    return origin is Literal


def _is_tuple(kind: Any) -> bool:
    origin: Any = get_origin(kind)  # as above
    return origin is tuple


def _is_tuple_of_one_type(kind: Any) -> bool:
    """Whether it is tuple[T, ...]."""
    return _is_tuple(kind) and ... in get_args(kind)


def _is_tuple_of_several(kind: Any) -> bool:
    """Whether it is tuple[S, T]."""
    return _is_tuple(kind) and ... not in get_args(kind)


def _is_mapping(kind: Any) -> bool:
    """Whether it is dict[S, T]."""
    origin: Any = get_origin(kind)  # as above
    return origin is dict


def _checked_first(
    kind: type, what: str, factory: Callable[..., Any]
) -> Callable[[Any, cattrs.Converter], Any]:
    """A hook factory of cattrs behind a look at the JSON type."""

    def make(target: Any, converter: cattrs.Converter) -> Any:
        return _only(kind, what, factory(target, converter))

    return make
