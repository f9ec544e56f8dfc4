"""Parameters: a chain's last values, and what `-D` sets instead."""

from collections.abc import Mapping

from topoc.dsl import ast
from topoc.dsl.diagnostic import Diagnostic, Place, error, warning
from topoc.dsl.resolve.chain import Link
from topoc.dsl.resolve.scope import Scope
from topoc.dsl.suggest import advice
from topoc.dsl.tokens import STATEMENTS

_COMMAND = Place("-D")


def parameters(
    links: tuple[Link, ...], define: Mapping[str, float], findings: list[Diagnostic]
) -> dict[str, float]:
    """The value of each parameter, the derived topology's and then `-D` last."""
    values: dict[str, float] = {}
    for link in links:
        for param in link.of(ast.Param):
            if param.value.unit:
                message = f"a parameter has no unit, and `{param.value.span.text}` has"
                help_ = "leave the unit out"
                findings.append(error("value.type", message, param.value.span, help=help_))
            values[param.name.text] = param.value.value
    for name, value in define.items():
        if name in values:
            values[name] = value
        else:
            findings.append(_unknown(name, values))
    return values


def _unknown(name: str, values: Mapping[str, float]) -> Diagnostic:
    help_ = advice(name, values, "it has") or "it has none; add `param NAME = NUMBER`"
    if name in STATEMENTS:
        shout = name[0].upper()
        help_ = f"`{name}` is a statement: write `param {shout} = …` and `{name} {shout}` for it"
    message = f"`-D {name}` sets no parameter of this topology"
    return error("param.unknown", message, _COMMAND, help=help_)


def report_unused(scope: Scope, links: tuple[Link, ...]) -> None:
    """Parameters of the topology's own text that nothing reads."""
    for param in links[-1].of(ast.Param):
        if param.name.text not in scope.used:
            message = f"nothing reads the parameter `{param.name}`"
            finding = warning("param.unused", message, param.name.span, help="use it or remove it")
            scope.report(finding)
