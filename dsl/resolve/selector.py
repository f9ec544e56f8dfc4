"""Selectors to sets: layers for `attention` and `kv`, tensors for `quantize`."""

from collections.abc import Iterable, Mapping

from attrs import frozen

from topoc.dsl import ast
from topoc.dsl.diagnostic import error
from topoc.dsl.model import Kind
from topoc.dsl.plain import Plain
from topoc.dsl.resolve.scope import Scope

KINDS = ("all", "sliding", "full")
Tensor = tuple[str, int | None]  # a role, and its layer if it has one


@frozen(eq=False, repr=False)
class Selected(Plain):
    """What a selector names: layers (None: it says nothing about layers) and roles, likewise."""

    layers: frozenset[int] | None
    roles: frozenset[str] | None


def select(
    scope: Scope, rule: ast.Rule, roles: Mapping[str, frozenset[str]] | None = None
) -> Selected | None:
    """The intersection of a rule's groups, or None after an error was reported.

    `roles` maps each role word to the leaf roles that it stands for; without it there are none.
    """
    layers: frozenset[int] | None = None
    chosen: frozenset[str] | None = None
    sound = True
    for group in rule.groups:
        found = _group(scope, group, roles or {})
        if found is None:
            sound = False
        elif found.layers is not None:
            layers = found.layers if layers is None else layers & found.layers
        elif found.roles is not None:
            chosen = found.roles if chosen is None else chosen & found.roles
    return Selected(layers, chosen) if sound else None


def _group(scope: Scope, group: ast.Group, roles: Mapping[str, frozenset[str]]) -> Selected | None:
    classes = {_class(item, roles) for item in group.items}
    for item in group.items:
        if isinstance(item, ast.Word) and item.text not in KINDS and item.text not in roles:
            known = [*KINDS, *roles]
            scope.unknown("selector.unknown", item.text, known, item.span, "selector")
            return None
    if len(classes) > 1:
        message = "a comma unites things of one class, and these are of two"
        help_ = "write two rules, or leave the comma out to intersect"
        scope.report(error("selector.mixed-list", message, group.span, help=help_))
        return None
    if classes == {"role"}:
        return Selected(None, frozenset().union(*(roles[str(item)] for item in group.items)))
    found = [_layers(scope, item) for item in group.items]
    whole = [one for one in found if one is not None]
    return Selected(frozenset().union(*whole), None) if len(whole) == len(found) else None


def _class(item: ast.Range | ast.Word, roles: Mapping[str, frozenset[str]]) -> str:
    if isinstance(item, ast.Range):
        return "layers"
    return "role" if item.text in roles else "kind"


def _layers(scope: Scope, item: ast.Range | ast.Word) -> frozenset[int] | None:
    if isinstance(item, ast.Range):
        numbers = scope.span_of(item)
        return None if numbers is None else frozenset(numbers)
    table = scope.layers.layers
    if item.text == "all":
        return frozenset(range(len(table)))
    kind = Kind(item.text)
    return frozenset(at for at, layer in enumerate(table) if layer.kind is kind)


def listed(layers: Iterable[int]) -> str:
    """Layer numbers as ranges: `L0-3, L5`."""
    runs: list[list[int]] = []
    for layer in sorted(layers):
        if runs and layer == runs[-1][1] + 1:
            runs[-1][1] = layer
        else:
            runs.append([layer, layer])
    return ", ".join(f"L{a}" if a == b else f"L{a}-{b}" for a, b in runs)
