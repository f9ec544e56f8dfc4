"""The `expect` blocks: budgets, and which of the base's they replace."""

from topoc.dsl import ast
from topoc.dsl.diagnostic import Label, error
from topoc.dsl.model import Budget
from topoc.dsl.resolve.chain import Link
from topoc.dsl.resolve.scope import Scope

_PLAIN = ("",)
_BYTES = ("B", "kB", "MB", "GB")
_TIME = ("ms", "s")
_SHARE = ("", "%")

# Each measure and the units that it takes.
MEASURES: dict[str, tuple[str, ...]] = {
    "layers per chunk": _PLAIN,
    "ops per chunk": _PLAIN,
    "states per chunk": _PLAIN,
    "fp16 per chunk": _BYTES,
    "disk per chunk": _BYTES,
    "chunks": _PLAIN,
    "kv bytes": _BYTES,
    "kv io per step": _BYTES,
    "ms per step": _TIME,
    "kl": _PLAIN,
    "cosine": _SHARE,
    "top1": _SHARE,
}
_DIRECTION = {"<": "most", "<=": "most", ">": "least", ">=": "least", "==": "equal"}

Bound = tuple[str, str]  # a measure and a direction
_ORDER = tuple((measure, way) for measure in MEASURES for way in ("most", "least", "equal"))


def budgets(scope: Scope, links: tuple[Link, ...]) -> tuple[Budget, ...]:
    """The budgets in force: a line replaces the base's of the same measure and direction."""
    found: dict[Bound, Budget] = {}
    for link in links:
        found |= _stated(scope, link)
    return tuple(found[bound] for bound in _ORDER if bound in found)


def _stated(scope: Scope, link: Link) -> dict[Bound, Budget]:
    """The budgets of one topology, each measure and direction once."""
    found: dict[Bound, Budget] = {}
    for line in (line for expect in link.of(ast.Expect) for line in expect.budgets):
        budget = _budget(scope, line)
        if budget is None:
            continue
        bound = budget.measure, _DIRECTION[budget.relation]
        if bound in found:
            message = f"`{budget.measure}` has two bounds in this direction"
            first = Label(found[bound].span, "the first")
            help_ = "keep the one that is meant"
            scope.report(error("name.duplicate", message, line.span, related=(first,), help=help_))
        found[bound] = budget
    return found


def _budget(scope: Scope, line: ast.Budget) -> Budget | None:
    if line.measure not in MEASURES:
        scope.unknown("expect.unknown", line.measure, MEASURES, line.span, "measure")
        return None
    value = scope.scaled(line.value, MEASURES[line.measure])
    if value is None:
        return None
    return Budget(measure=line.measure, relation=line.relation, value=value, span=line.span)
