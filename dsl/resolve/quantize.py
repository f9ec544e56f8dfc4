"""The `quantize` block: which scheme each tensor role of each layer gets."""

from collections.abc import Iterator

from topoc.dsl import ast
from topoc.dsl.diagnostic import error
from topoc.dsl.model import Layers, Recipe, Scheme
from topoc.dsl.resolve.arguments import arguments
from topoc.dsl.resolve.chain import Link
from topoc.dsl.resolve.rules import Board, Placed, rules_of
from topoc.dsl.resolve.scope import Option, Scope
from topoc.dsl.resolve.selector import Tensor, select
from topoc.dsl.suggest import quoted

ATTENTION = ("q", "k", "v", "o")
MLP = ("gate", "up", "down")
TABLES = ("embed", "ple_table")
ACTIVATIONS = "activations"

ROLES = {
    **{role: frozenset({role}) for role in (*ATTENTION, *MLP, *TABLES, ACTIVATIONS)},
    "ple": frozenset({"ple"}),
    "head": frozenset({"head"}),
    "attn": frozenset(ATTENTION),
    "mlp": frozenset(MLP),
    "weights": frozenset({*ATTENTION, *MLP, "ple", "head"}),
}

_BITS = (1, 2, 3, 4, 6, 8)
SCHEMES: dict[str, tuple[Option, ...]] = {
    "none": (),
    "palettize": (
        Option("bits", required=True, numbers=_BITS),
        Option("group", words=("per_tensor",), or_number=True, bare=True),
        Option("lut", words=("fp16", "int8")),
    ),
    "int8": (Option("per", words=("channel", "row", "tensor")),),
    "int4": (Option("block"),),
    "prune": (Option("n", required=True), Option("m", required=True)),
}
_DEFAULTS: dict[str, tuple[tuple[str, int | str], ...]] = {
    "palettize": (("group", "per_tensor"), ("lut", "fp16")),
    "int8": (("per", "channel"),),
    "int4": (("block", 32),),
}
_PER = {**dict.fromkeys(TABLES, "row"), ACTIVATIONS: "tensor"}  # what shares a scale, by role
_NONE = (Scheme(name="none"),)
_ROWS = (Scheme(name="int8", arguments=(("per", "row"),)),)


def tensors(layers: Layers) -> tuple[Tensor, ...]:
    """Every tensor role that the model has, layer by layer, then those outside layers."""
    found: list[Tensor] = []
    for at, layer in enumerate(layers.layers):
        own = ATTENTION if layer.kv_weights else ("q", "o")
        found += [(role, at) for role in (*own, *MLP, *(("ple",) if layers.has_ple else ()))]
    found += [(role, None) for role in (("ple",) if layers.has_ple else ())]
    found += [("head", None), ("embed", None)]
    found += [("ple_table", None)] if layers.has_ple else []
    return (*found, (ACTIVATIONS, None))


def recipes(scope: Scope, links: tuple[Link, ...]) -> tuple[Recipe, ...]:
    """One recipe for each tensor role of each layer."""
    board = Board(scope)
    known = tensors(scope.layers)
    for placed in rules_of(links, "quantize"):
        _apply(scope, board, placed, known)
    board.report_dead()
    return tuple(
        Recipe(
            role=role,
            layer=layer,
            schemes=board.get((role, layer)) or (_ROWS if role in TABLES else _NONE),
            span=board.span((role, layer)),
        )
        for role, layer in known
    )


def _apply(scope: Scope, board: Board, placed: Placed, known: tuple[Tensor, ...]) -> None:
    selected = select(scope, placed.rule, ROLES)
    schemes = _schemes(scope, placed.rule)
    if selected is None:
        return
    roles = ROLES["weights"] if selected.roles is None else selected.roles
    chosen = [
        (role, layer)
        for role, layer in known
        if role in roles and (selected.layers is None or layer in selected.layers)
    ]
    board.matched(placed, len(chosen))
    if schemes is None or not _fits(scope, placed.rule, schemes, chosen):
        return
    for role, layer in chosen:
        full = tuple(_full(one, _PER.get(role)) for one in schemes)
        board.set(placed, [(role, layer)], full)


def _schemes(scope: Scope, rule: ast.Rule) -> tuple[Scheme, ...] | None:
    """The schemes that a rule names, as written."""
    setting = rule.settings[0]
    if len(rule.settings) > 1 or not isinstance(setting, ast.Stack):
        message = "a rule of `quantize` names one scheme, or several joined by `+`"
        help_ = "write `SELECTOR: SCHEME`, and another rule for other tensors"
        scope.report(error("scheme.argument", message, rule.settings[-1].span, help=help_))
        return None
    found = list(_calls(scope, setting))
    if len(found) < len(setting.calls):
        return None
    if len(found) > 1 and found[0].name != "prune":
        message = "only `prune` goes with a second scheme, and it comes first"
        help_ = "write `prune(n = 2, m = 4) + SCHEME`"
        scope.report(error("scheme.argument", message, setting.span, help=help_))
        return None
    return tuple(found)


def _calls(scope: Scope, stack: ast.Stack) -> Iterator[Scheme]:
    for call in stack.calls:
        if call.name not in SCHEMES:
            scope.unknown("scheme.unknown", call.name, SCHEMES, call.span, "scheme")
            continue
        given = arguments(scope, call, SCHEMES[call.name], "scheme.argument")
        if given is not None:
            order = [option.name for option in SCHEMES[call.name]]
            items = sorted(given.items(), key=lambda item: order.index(item[0]))
            scheme = Scheme(name=call.name, arguments=tuple(items))
            if _leaves_some(scope, scheme, call):
                yield scheme


def _leaves_some(scope: Scope, scheme: Scheme, call: ast.Call) -> bool:
    """Whether something is left of a pruned tensor."""
    given = dict(scheme.arguments)
    if scheme.name != "prune" or int(given["n"]) < int(given["m"]):
        return True
    message = f"nothing is left where {given['n']} of {given['m']} weights are pruned"
    scope.report(error("scheme.argument", message, call.span, help="write an `n` below `m`"))
    return False


def _full(scheme: Scheme, per: str | None) -> Scheme:
    """A scheme with its defaults explicit, `per` among them where the role has its own."""
    defaults = dict(_DEFAULTS.get(scheme.name, ()))
    if per is not None and "per" in defaults:
        defaults["per"] = per
    order = [option.name for option in SCHEMES[scheme.name]]
    merged = {**defaults, **dict(scheme.arguments)}
    return Scheme(
        name=scheme.name, arguments=tuple((name, merged[name]) for name in order if name in merged)
    )


def _fits(scope: Scope, rule: ast.Rule, schemes: tuple[Scheme, ...], chosen: list[Tensor]) -> bool:
    """Whether activations, if they are among the chosen, can take the schemes."""
    names = {scheme.name for scheme in schemes}
    if not any(role == ACTIVATIONS for role, _ in chosen) or names <= {"none", "int8"}:
        return True
    message = f"activations can't take `{rule.settings[0].span.text}`"
    help_ = f"write {quoted(['none', 'int8'])}"
    scope.report(error("scheme.argument", message, rule.settings[0].span, help=help_))
    return False
