"""The `kv` block: who owns each cache, and how it is written, sized and kept."""

from collections.abc import Iterator

from topoc.dsl import ast
from topoc.dsl.diagnostic import Label, error
from topoc.dsl.model import Attention, Kv, Layer, Store, Write
from topoc.dsl.resolve.arguments import arguments
from topoc.dsl.resolve.chain import Link
from topoc.dsl.resolve.rules import Board, Placed, rules_of
from topoc.dsl.resolve.scope import Option, Scope
from topoc.dsl.resolve.selector import select
from topoc.dsl.source import Span
from topoc.dsl.suggest import quoted

CLAUSES = {
    "own": (),
    "share": (),
    "write": tuple(write.value for write in Write),
    "slots": ("window", "context"),
    "store": ("io", "state"),
    "row": ("tight", "padded"),
}
_PROPERTY = {"own": "source", "share": "source"}
_STATE = (Option("name", any_word=True, bare=True),)
_PADDED = (Option("heads"),)

Setting = tuple[str, object]  # a property and its value


def caches(
    scope: Scope,
    links: tuple[Link, ...],
    attentions: tuple[Attention, ...],
    *,
    context: int,
    padded: bool,
) -> tuple[Kv, ...]:
    """The cache of each layer; what no rule sets, the checkpoint and the defaults decide."""
    board = Board(scope)
    for placed in rules_of(links, "kv"):
        _apply(scope, board, placed)
    board.report_dead()
    return tuple(
        _kv(board, at, layer, attention, context=context, padded=padded)
        for (at, layer), attention in zip(enumerate(scope.layers.layers), attentions, strict=True)
    )


def _apply(scope: Scope, board: Board, placed: Placed) -> None:
    selected = select(scope, placed.rule)
    settings = list(_settings(scope, placed.rule))
    if selected is None:
        return
    layers = sorted(selected.layers or ())
    board.matched(placed, len(layers))
    for name, value in settings:
        board.set(placed, [(name, at) for at in layers], value)


def _settings(scope: Scope, rule: ast.Rule) -> Iterator[Setting]:
    """The properties that a rule sets, each once."""
    seen: dict[str, Span] = {}
    for setting in rule.settings:
        found = _setting(scope, setting)
        if found is None:
            continue
        if found[0] in seen:
            message = f"this rule sets the {found[0]} twice"
            first = Label(seen[found[0]], "the first")
            scope.report(error("kv.clause", message, setting.span, related=(first,)))
            continue
        seen[found[0]] = setting.span
        yield found


def _setting(scope: Scope, setting: ast.Setting) -> Setting | None:
    if isinstance(setting, ast.Stack):
        call = setting.calls[0]
        if len(setting.calls) > 1:
            message, help_ = "`+` joins no clauses", "put a comma between them"
            scope.report(error("kv.clause", message, setting.span, help=help_))
        elif call.name == "own" and not call.arguments:
            return "source", "own"
        else:
            _report_lone(scope, call)
        return None
    if setting.property not in CLAUSES or setting.property == "own":
        scope.unknown("kv.unknown", setting.property, CLAUSES, setting.span, "KV clause")
        return None
    if setting.property == "share":
        return _share(scope, setting)
    return _choice(scope, setting)


def _report_lone(scope: Scope, call: ast.Call) -> None:
    """A word alone: an operand whose clause was left out, or nothing known."""
    owners = [name for name, words in CLAUSES.items() if call.name in words]
    if owners:
        message = f"`{call.name}` needs the word of its clause before it"
        help_ = f"write `{owners[0]} {call.name}`"
        scope.report(error("kv.clause", message, call.span, help=help_))
    elif call.name in CLAUSES and call.name != "own":
        words = CLAUSES[call.name]
        help_ = f"write `{call.name} {words[0]}`" if words else "write `share L13`"
        message = f"`{call.name}` needs to say what"
        scope.report(error("kv.clause", message, call.span, help=help_))
    else:
        scope.unknown("kv.unknown", call.name, CLAUSES, call.span, "KV clause")


def _share(scope: Scope, clause: ast.Clause) -> Setting | None:
    donor = clause.operand
    if not isinstance(donor, ast.Range) or donor.first != donor.last:
        message = "`share` names one layer"
        scope.report(error("kv.clause", message, donor.span, help="write `share L13`"))
        return None
    return ("source", donor.first) if scope.span_of(donor) is not None else None


def _choice(scope: Scope, clause: ast.Clause) -> Setting | None:
    """A clause whose operand is one of some words."""
    name, call = clause.property, clause.operand
    if isinstance(call, ast.Range):
        help_ = f"write {quoted(f'{name} {word}' for word in CLAUSES[name])}"
        message = f"`{name}` takes a word, not a layer"
        scope.report(error("kv.clause", message, call.span, help=help_))
        return None
    if call.name not in CLAUSES[name]:
        scope.unknown("kv.clause", call.name, CLAUSES[name], call.span, f"`{name}` clause")
        return None
    options = {"state": _STATE, "padded": _PADDED}.get(call.name, ())
    given = arguments(scope, call, options, "kv.clause")
    if given is None:
        return None
    if name == "store":
        return name, (Store(call.name), given.get("name"))
    if name == "row":
        return name, (call.name == "padded", given.get("heads"))
    return name, Write(call.name) if name == "write" else call.name


def _kv(
    board: Board, at: int, layer: Layer, attention: Attention, *, context: int, padded: bool
) -> Kv:
    source = board.get(("source", at))
    donor = layer.donor if source is None else source
    marks = [
        (name, board.span((name, at))) for name in ("source", "write", "slots", "store", "row")
    ]
    known = tuple((name, span) for name, span in marks if span is not None)
    span = board.span(("source", at))
    if isinstance(donor, int):
        return Kv(donor=donor, span=span, marks=known)
    store, state = board.get(("store", at)) or (Store.IO, None)
    held = store is Store.STATE
    wide, heads = board.get(("row", at)) or (padded, None)
    everything = board.get(("slots", at)) == "context"
    return Kv(
        write=board.get(("write", at)) or (Write.SLICE if held else Write.APPEND),
        slots=context if everything else attention.window or context,
        store=store,
        state=(state or f"kv_{layer.kind.value}") if held else None,
        padded=wide,
        padded_heads=heads,
        span=span,
        marks=known,
    )
