"""The `attention` block: which attention each layer runs."""

from attrs import evolve, frozen

from topoc.dsl import ast
from topoc.dsl.diagnostic import error
from topoc.dsl.model import Attention, Kind, Layer
from topoc.dsl.plain import Plain
from topoc.dsl.resolve.arguments import arguments
from topoc.dsl.resolve.chain import Link
from topoc.dsl.resolve.rules import Board, Placed, rules_of
from topoc.dsl.resolve.scope import Option, Scope
from topoc.dsl.resolve.selector import listed, select
from topoc.dsl.suggest import quoted


@frozen(eq=False, repr=False)
class Shape(Plain):
    """One attention kind of the open set: what it takes and which layers it is for."""

    options: tuple[Option, ...]
    fits: tuple[Kind, ...]


SHAPES = {
    "sliding": Shape((Option("window"),), (Kind.SLIDING,)),
    "full": Shape((), (Kind.SLIDING, Kind.FULL)),
    "windowed_full": Shape((Option("window", required=True),), (Kind.FULL,)),
    "flash_tiled": Shape(
        (Option("tile", required=True), Option("window")), (Kind.SLIDING, Kind.FULL)
    ),
}


def attentions(scope: Scope, links: tuple[Link, ...], context: int) -> tuple[Attention, ...]:
    """The attention of each layer; what no rule sets, the checkpoint decides."""
    board = Board(scope)
    for placed in rules_of(links, "attention"):
        _apply(scope, board, placed, context)
    board.report_dead()
    _report_misfits(scope, board)
    return tuple(
        board.get(at) or _own(layer, context) for at, layer in enumerate(scope.layers.layers)
    )


def _apply(scope: Scope, board: Board, placed: Placed, context: int) -> None:
    selected = select(scope, placed.rule)
    attention = _setting(scope, placed.rule, context)
    if selected is None or attention is None:
        return
    layers = sorted(selected.layers or ())
    board.matched(placed, len(layers))
    for at in layers:
        window = attention.window
        if attention.kind == "sliding" and window is None:
            window = _own(scope.layers.layers[at], context).window
        board.set(placed, [at], evolve(attention, window=window))


def _own(layer: Layer, context: int) -> Attention:
    """The checkpoint's attention; a window that the context never fills is the context."""
    if layer.kind is Kind.FULL:
        return Attention(kind="full", window=None)
    return Attention(kind="sliding", window=min(layer.window or context, context))


def _setting(scope: Scope, rule: ast.Rule, context: int) -> Attention | None:
    """The attention that a rule names."""
    setting = rule.settings[0]
    calls = setting.calls if isinstance(setting, ast.Stack) else ()
    if len(rule.settings) > 1 or len(calls) != 1:
        message = "a rule of `attention` names one kind with its arguments"
        help_ = "write `SELECTOR: KIND`, and another rule for other layers"
        scope.report(error("attention.argument", message, rule.settings[-1].span, help=help_))
        return None
    call = calls[0]
    shape = SHAPES.get(call.name)
    if shape is None:
        scope.unknown("attention.unknown", call.name, SHAPES, call.span, "attention kind")
        return None
    given = arguments(scope, call, shape.options, "attention.argument")
    if given is None:
        return None
    window, tile = given.get("window"), given.get("tile")
    if isinstance(window, int) and window > context:
        message = f"the window {window} is longer than the context, {context}"
        help_ = "raise the context or narrow the window"
        scope.report(error("attention.window-over-context", message, call.span, help=help_))
        return None
    return Attention(
        kind=call.name,
        window=window if isinstance(window, int) else None,
        tile=tile if isinstance(tile, int) else None,
        span=rule.span,
    )


def _report_misfits(scope: Scope, board: Board) -> None:
    """One finding for each rule that gives layers a kind that is not for them."""
    misfits: dict[int, list[int]] = {}
    rules: dict[int, tuple[ast.Rule, Attention]] = {}
    for at, layer in enumerate(scope.layers.layers):
        attention = board.get(at)
        if attention is not None and layer.kind not in SHAPES[attention.kind].fits:
            rule = board.cells[at][1].rule
            misfits.setdefault(id(rule), []).append(at)
            rules[id(rule)] = (rule, attention)
    for key, layers in misfits.items():
        rule, attention = rules[key]
        kind = scope.layers.layers[layers[0]].kind
        fitting = quoted(name for name, shape in SHAPES.items() if kind in shape.fits)
        verb = "is" if len(layers) == 1 else "are"
        message = f"`{attention.kind}` does not fit {listed(layers)}, which {verb} {kind.value}"
        help_ = f"{kind.value} layers take {fitting}"
        span = rule.settings[0].span
        scope.report(error("attention.misfit", message, span, help=help_))
