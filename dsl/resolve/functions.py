"""The `functions` line: what the chunks offer, and the chunk list of each function."""

from collections.abc import Mapping, Sequence

from attrs import evolve

from topoc.dsl import ast
from topoc.dsl.diagnostic import error
from topoc.dsl.model import Chunk, Function, Kv, Role
from topoc.dsl.resolve.arguments import arguments
from topoc.dsl.resolve.chain import Link
from topoc.dsl.resolve.chunks import UNITS, Listed, chunks
from topoc.dsl.resolve.cover import check_cover
from topoc.dsl.resolve.scope import Option, Scope

_ONE = (Option("package", words=("shared", "separate")), Option("unit", words=UNITS))
_SEVERAL = (Option("tokens", required=True), Option("write", words=("graph", "host")), *_ONE)
ROLES: Mapping[Role, tuple[Option, ...]] = {
    "decode": _ONE,
    "prefill": _SEVERAL,
    "verify": _SEVERAL,
}


def functions(
    scope: Scope, links: tuple[Link, ...], context: int, kept: Sequence[Kv]
) -> tuple[tuple[Chunk, ...], tuple[Function, ...]]:
    """The main chunk list, and the functions with lists of their own where they have one."""
    named = _named(scope, links, context)
    listed = chunks(scope, links)
    if listed is None:
        return (), tuple(named)
    _report_strangers(scope, listed, named)
    main = tuple(one.chunk for one in listed if one.function is None)
    found = [_with_list(scope, links, function, listed, kept) for function in named]
    if main:
        check_cover(scope, links, main, kept, may_end_early=False)
    elif any(function.chunks is None for function in found):
        lost = next(function for function in found if function.chunks is None)
        message = f"`{lost.name}` has no chunks: each line names another function"
        help_ = "add chunk lines without `function`"
        scope.report(error("chunk.missing", message, links[-1].topology.name.span, help=help_))
    return main, tuple(found)


def _named(scope: Scope, links: tuple[Link, ...], context: int) -> list[Function]:
    """The functions of the last `functions` line; decode without one."""
    stated = [line for link in links for line in link.of(ast.Functions)]
    if not stated:
        return [Function(name="decode", role="decode", tokens=1)]
    found: list[Function] = []
    for call in stated[-1].calls:
        function = _function(scope, call, context)
        if function is None:
            continue
        if function.name in [other.name for other in found]:
            message = f"`{function.name}` stands twice"
            help_ = "list each function once"
            scope.report(error("name.duplicate", message, call.span, help=help_))
        found.append(function)
    return found


def _function(scope: Scope, call: ast.Call, context: int) -> Function | None:
    role = next((one for one in ROLES if one == call.name), None)
    if role is None:
        scope.unknown("function.unknown", call.name, ROLES, call.span, "function")
        return None
    given = arguments(scope, call, ROLES[role], "function.argument")
    if given is None:
        return None
    tokens = given.get("tokens", 1)
    if not isinstance(tokens, int) or tokens > context:
        message = f"{tokens} tokens are more than the context of {context}"
        help_ = f"write at most {context}, or raise the context"
        scope.report(error("value.range", message, call.span, help=help_))
        return None
    unit = given.get("unit")
    return Function(
        name=role if role == "decode" else f"{role}_{tokens}",
        role=role,
        tokens=tokens,
        write="graph" if given.get("write") == "graph" else "host",
        separate=given.get("package") == "separate",
        unit=None if unit is None else str(unit),
        span=call.span,
    )


def _report_strangers(scope: Scope, listed: Sequence[Listed], named: Sequence[Function]) -> None:
    """A chunk for a function that is not offered."""
    known = [function.name for function in named]
    for one in listed:
        if one.function is not None and one.function not in known and one.chunk.span:
            what = "offered function"
            scope.unknown("function.unknown", one.function, known, one.chunk.span, what)


def _with_list(
    scope: Scope,
    links: tuple[Link, ...],
    function: Function,
    listed: Sequence[Listed],
    kept: Sequence[Kv],
) -> Function:
    """The function with the chunk list that is its own, if it has one."""
    own = tuple(one.chunk for one in listed if one.function == function.name)
    if not own:
        return function
    check_cover(scope, links, own, kept, may_end_early=function.role == "prefill")
    return evolve(function, chunks=own)
