"""Which functions consume a run of tokens, and how many each."""

from topoc.dsl.diagnostic import Place, TopocError, error
from topoc.lowering.manifest import Function, Manifest

PLACE = Place("manifest.json", "functions")


def split(
    manifest: Manifest, position: int, tokens: int, only: str | None = None
) -> tuple[tuple[Function, int], ...]:
    """Functions with their counts of real tokens; the last call gives an answer.

    While more than one token is left: of the prefills that fit, the one that takes most of them,
    and of those that take as many the smallest. What none takes, and a single token, goes through
    decode.
    """
    functions = _offered(manifest, only)
    calls: list[tuple[Function, int]] = []
    taken = 0
    while taken < tokens:
        function, real = _next(manifest, functions, position + taken, tokens - taken)
        calls.append((function, real))
        taken += real
    return tuple(calls)


def room(function: Function, position: int, left: int) -> int:
    """How many of the `left` tokens a function takes at a position: all its rows, some, or none.

    One that fills caches only leaves the last token to another; one that writes its caches itself
    may take full calls only, and none that would wrap in a cache.
    """
    real = min(left if function.answers else left - 1, function.tokens)
    if function.full_only and real < function.tokens:
        return 0
    if any(position % slots + function.tokens > slots for slots in function.unwrapped):
        return 0
    return real


def sees_all(function: Function, position: int, real: int) -> bool:
    """Whether no query of a call misses a position of its window.

    A verify may see its rows as if they were written; what they push out, its first rows miss.
    """
    sources = (one.source for step in function.steps for one in step.inputs)
    for one in sources:
        if one.kind == "mask" and one.keys == "cache" and one.slots is not None:
            first = 0 if one.window is None else max(0, position - one.window + 1)
            if position + real - one.slots > first:
                return False
    return True


def verify_taking(manifest: Manifest, tokens: int) -> Function | None:
    """The smallest verify that takes this many tokens."""
    fitting = [
        one
        for one in manifest.functions
        if one.role == "verify"
        and (one.tokens == tokens or (one.tokens > tokens and not one.full_only))
    ]
    return min(fitting, key=lambda one: one.tokens, default=None)


def no_verify(manifest: Manifest, tokens: int) -> TopocError:
    """That no verify takes this many tokens."""
    message = f"`{manifest.name}` has no verify of {tokens} tokens"
    remedy = f"compile with `functions decode, verify(tokens = {tokens})`"
    sizes = sorted(one.tokens for one in manifest.functions if one.role == "verify")
    if sizes:
        remedy = f"give {' or '.join(map(str, sizes))}, or {remedy}"
    return TopocError(error("run.no-such-function", message, PLACE, help=remedy))


def _offered(manifest: Manifest, only: str | None) -> tuple[Function, ...]:
    """What may be called: all, or the one that is named and decode where that one can't serve."""
    fed = tuple(one for one in manifest.functions if one.role != "verify")
    if only is None:
        return fed
    named = tuple(one for one in fed if one.name == only)
    if not named:
        message = f"`{manifest.name}` can't be fed by a function `{only}`"
        remedy = f"name one of {', '.join(one.name for one in fed)}"
        raise TopocError(error("run.no-such-function", message, PLACE, help=remedy))
    alone = named[0].answers and not named[0].full_only and not named[0].unwrapped
    return named if alone else (*named, *(one for one in fed if one.role == "decode"))


def _next(
    manifest: Manifest, functions: tuple[Function, ...], position: int, left: int
) -> tuple[Function, int]:
    """The function of the next call and its real tokens."""
    rooms = [(one, room(one, position, left)) for one in functions]
    decodes = [(one, real) for one, real in rooms if one.role == "decode" and real]
    least = 2 if decodes else 1  # a prefill that takes one token costs more than a decode
    prefills = [(one, real) for one, real in rooms if one.role == "prefill" and real >= least]
    if prefills:
        return min(prefills, key=lambda found: (-found[1], found[0].tokens))
    if decodes:
        return decodes[0]
    message = f"no function of `{manifest.name}` takes {left} tokens at position {position}"
    remedy = "compile with `decode` among the functions"
    raise TopocError(error("run.no-such-function", message, PLACE, help=remedy))
