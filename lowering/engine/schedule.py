"""Which functions consume a run of tokens, and how many each."""

from typing import Literal

from topoc.dsl.diagnostic import Place, TopocError, error
from topoc.lowering.manifest import Function, Manifest

RESULTS = frozenset({"token", "logits", "topk_ids", "hidden"})


def split(
    manifest: Manifest, tokens: int, only: str | None = None
) -> tuple[tuple[Function, int], ...]:
    """Functions with their counts of real tokens; the last call gives a result.

    While more than one token is left, the smallest prefill that holds the rest, else the largest
    one; a single token goes through decode.
    """
    functions = _offered(manifest, only)
    calls: list[tuple[Function, int]] = []
    left = tokens
    while left:
        function = _next(manifest, functions, left)
        real = min(left, function.tokens)
        if real == left and not _tells(function):
            real -= 1
        calls.append((function, real))
        left -= real
    return tuple(calls)


def with_role(
    manifest: Manifest, role: Literal["decode", "prefill", "verify"], tokens: int
) -> Function:
    """The smallest function of a role that holds this many tokens."""
    fitting = [f for f in manifest.functions if f.role == role and f.tokens >= tokens]
    if not fitting:
        message = f"`{manifest.name}` has no {role} of {tokens} tokens"
        raise TopocError(
            error("run.no-such-function", message, Place("manifest.json", "functions"))
        )
    return min(fitting, key=lambda f: f.tokens)


def _offered(manifest: Manifest, only: str | None) -> tuple[Function, ...]:
    if only is None:
        return tuple(f for f in manifest.functions if f.role in {"decode", "prefill"})
    named = tuple(f for f in manifest.functions if f.name == only)
    if named and named[0].role != "verify" and _tells(named[0]):
        return named
    fit = [f.name for f in manifest.functions if f.role != "verify" and _tells(f)]
    message = f"`{manifest.name}` can't be fed by a function `{only}` alone"
    place = Place("manifest.json", "functions")
    raise TopocError(
        error("run.no-such-function", message, place, help=f"name one of {', '.join(fit)}")
    )


def _next(manifest: Manifest, functions: tuple[Function, ...], left: int) -> Function:
    """The function of the next call; one that gives no result leaves a token for another."""
    able = [f for f in functions if left > 1 or _tells(f)]
    prefills = sorted((f for f in able if f.role == "prefill"), key=lambda f: f.tokens)
    decodes = [f for f in able if f.role == "decode"]
    if decodes and (left == 1 or not prefills):
        return decodes[0]
    if not prefills:
        message = f"no function of `{manifest.name}` gives a result of {left} tokens"
        place = Place("manifest.json", "functions")
        raise TopocError(error("run.no-such-function", message, place))
    return next((f for f in prefills if f.tokens >= left), prefills[-1])


def _tells(function: Function) -> bool:
    """Whether it gives a token, logits or a hidden state."""
    return any(one.sink.kind in RESULTS for step in function.steps for one in step.outputs)
