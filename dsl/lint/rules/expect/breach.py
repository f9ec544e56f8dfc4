"""A budget that the topology breaks."""

from collections.abc import Callable, Iterator
from operator import eq, ge, gt, le, lt

from topoc.dsl.diagnostic import Label
from topoc.dsl.lint.rule import Finding, Rule
from topoc.dsl.lint.subject import Subject
from topoc.dsl.measure import Measured, measure
from topoc.dsl.model import Budget
from topoc.dsl.resolve.budgets import MEASURES


class Breach(Rule):
    """A topology keeps the budgets that it states.

    Budgets travel with the file: whoever derives another topology from it inherits them, and hears
    of it when a change of chunks or context costs more than the author wanted to spend.
    """

    coherence = True
    bad = """
topology over_budget {
  model "gemma3.json"
  target ane ios18 a17
  context 2048
  chunk chunk1 = L0-8
  chunk chunk2 = L9-17 + norm + head(argmax)
  expect { layers per chunk <= 8 }
}
"""
    good = """
topology within_budget {
  model "gemma3.json"
  target ane ios18 a17
  context 2048
  chunk chunk1 = L0-8
  chunk chunk2 = L9-17 + norm + head(argmax)
  expect { layers per chunk <= 9 }
}
"""

    def _check(self, subject: Subject) -> Iterator[Finding]:
        for budget in subject.topology.budgets:
            found = measure(subject.topology, budget.measure) or ()
            holds = _HOLDS[budget.relation]
            breaches = [one for one in found if not holds(one.value, budget.value)]
            if breaches:
                yield self._breach(subject, budget, breaches)

    def _breach(self, subject: Subject, budget: Budget, found: list[Measured]) -> Finding:
        worst = max(found, key=lambda one: abs(one.value - budget.value))
        name = worst.chunk.name if worst.chunk else subject.topology.name
        amount, limit = _amounts(budget.measure, worst.value, budget.value)
        is_ = f"{budget.measure} is {amount} in `{name}`"
        message = f"{is_}, and the budget is {budget.relation} {limit}"
        help_ = "change the chunks, or state the budget anew"
        if _inherited(subject, budget):
            line = f"expect {{ {budget.measure} {budget.relation} … }}"
            help_ = f"the budget is inherited; state `{line}` to change it"
        related = tuple(
            Label(one.chunk.span, _amounts(budget.measure, one.value, budget.value)[0])
            for one in found
            if one.chunk is not None and one.chunk.span is not None
        )
        return self.flag(budget.span, message, help=help_, related=related)


def _inherited(subject: Subject, budget: Budget) -> bool:
    """Whether a base states the budget: in another file, or above the topology."""
    whole, at = subject.whole, budget.span
    return at.source is not whole.source or at.start < whole.start


def _amounts(name: str, value: float, limit: float) -> tuple[str, str]:
    """Two values in the unit that people read them in, with the digits that tell them apart."""
    digits = next((n for n in range(3, 9) if _amount(name, value, n) != _amount(name, limit, n)), 9)
    return _amount(name, value, digits), _amount(name, limit, digits)


def _amount(name: str, value: float, digits: int) -> str:
    if "B" not in MEASURES[name]:
        return f"{value:g}"
    unit = next(one for one in _SCALES if value >= _SCALES[one] or one == "B")
    return f"{value / _SCALES[unit]:.{digits}g} {unit}"


_SCALES = {"GB": 1e9, "MB": 1e6, "kB": 1e3, "B": 1.0}
_HOLDS: dict[str, Callable[[float, float], bool]] = {
    "<": lt,
    "<=": le,
    ">": gt,
    ">=": ge,
    "==": eq,
}
