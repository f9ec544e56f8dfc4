"""Where a value of a program comes from and where it goes, past what only lays it out anew."""

from collections.abc import Callable, Iterator, Sequence

from topoc.dsl.lint.mil import FLEXIBLE, Function, Literal, Op, Operand

# What gives the elements of its operand in another shape or order, or some of them.
VIEWS = frozenset(
    {
        "expand_dims",
        "identity",
        "reshape",
        "slice_by_index",
        "slice_by_size",
        "split",
        "squeeze",
        "transpose",
    }
)
CASTS = VIEWS | {"cast"}
READS = ("read_state",)
WRITES = ("write_state", "coreml_update_state")


def written(op: Op) -> tuple[Operand | None, Operand | None]:
    """The state that an op writes, and the value."""
    if op.kind == "write_state":
        return op.operand("input"), op.operand("data")
    return op.operand("state"), op.operand("value")


def origin(
    function: Function, operand: Operand | None, through: frozenset[str] = VIEWS
) -> Operand | None:
    """The value that another one is a view of; itself if it is none."""
    seen: set[Operand | None] = set()  # a damaged program may make a value of itself
    op = function.maker(operand)
    while op is not None and op.kind in through and operand not in seen:
        seen.add(operand)
        operand = op.operand("x")
        op = function.maker(operand)
    return operand


def readers(function: Function, name: str, through: frozenset[str] = VIEWS) -> Iterator[Op]:
    """The ops that compute with a value or a view of it, each once."""
    seen: set[int] = set()
    for view in views(function, name, through):
        for op in function.readers(view):
            if op.kind not in through and id(op) not in seen:
                seen.add(id(op))
                yield op


def views(function: Function, name: str, through: frozenset[str] = VIEWS) -> Iterator[str]:
    """A value and all views of it."""
    waiting, seen = [name], {name}
    while waiting:
        current = waiting.pop()
        yield current
        for op in function.readers(current):
            if op.kind in through:
                fresh = [one.name for one in op.outputs if one.name not in seen]
                seen.update(fresh)
                waiting += fresh


def descends(function: Function, operand: Operand | None, wanted: Callable[[Op], bool]) -> bool:
    """Whether some op that a value depends on is of a sort; the search looks at 400 ops."""
    waiting = [operand] if isinstance(operand, str) else []
    seen: set[str] = set()
    while waiting and len(seen) < 400:
        op = function.maker(waiting.pop())
        if op is None or op.constant or op.result in seen:
            continue
        if wanted(op):
            return True
        seen.add(op.result)
        waiting += op.names
    return False


def scalar(function: Function, operand: Operand | None) -> float | None:
    """The number that an operand is, if it is one and known."""
    literal = function.literal(operand)
    value = literal.only if literal is not None else None
    return float(value) if isinstance(value, int | float) else None


def other(function: Function, op: Op, name: str) -> Operand | None:
    """The operand of `x` and `y` that is no view of a value."""
    x, y = op.operand("x"), op.operand("y")
    return y if name in {x, origin(function, x), origin(function, x, CASTS)} else x


def axis_size(function: Function, op: Op, default: int = -1) -> int:
    """The size of the axis of `x` that an op works along; 0 if it is not known."""
    shape = function.type_of(op.operand("x")).shape
    literal = function.literal(op.operand("axis"))
    axis = literal.only if isinstance(literal, Literal) and literal.only is not None else default
    if not isinstance(axis, int) or not -len(shape) <= axis < len(shape):
        return 0
    return 0 if shape[axis] == FLEXIBLE else shape[axis]


def positions(function: Function) -> dict[int, int]:
    """The place of each op in the order of the program, by its identity."""
    return {id(op): at for at, op in enumerate(function.ops)}


def counted(ops: Sequence[Op]) -> str:
    """Ops of one type, as words: "a `cumsum`" or "3 `cumsum` ops"."""
    kind = ops[0].kind
    return f"`{kind}`" if len(ops) == 1 else f"{len(ops)} `{kind}` ops"


def broadcasts(function: Function, product: Op) -> bool:
    """Whether leading axes of a `matmul` are repeated for one operand."""
    x, y = (function.type_of(product.operand(key)).shape[:-2] for key in ("x", "y"))
    return len(x) == len(y) and any(
        1 in pair and pair[0] != pair[1] for pair in zip(x, y, strict=True)
    )


def is_depthwise(function: Function, conv: Op) -> bool:
    """Whether a convolution has a group for each of its channels."""
    shape = function.type_of(conv.operand("x")).shape
    groups = scalar(function, conv.operand("groups"))
    return groups is not None and groups > 1 and len(shape) > 2 and groups == shape[1]


def is_lookup(function: Function, gather: Op) -> bool:
    """Whether rows of a constant table are picked while the program runs."""
    table, rank = gather.operand("x"), function.type_of(gather.operand("x")).rank
    first = scalar(function, gather.operand("axis")) in {0.0, None}
    picks = not function.is_constant(gather.operand("indices"))
    return rank == 2 and first and picks and function.is_constant(table)


def is_angle_lookup(function: Function, gather: Op) -> bool:
    """Whether what is looked up is only ever a factor of something else, as angles are."""
    if not is_lookup(function, gather) or not gather.type.floating:
        return False
    uses = list(readers(function, gather.result, CASTS))
    return bool(uses) and all(
        one.kind == "mul" and _by_another(function, gather.result, one) for one in uses
    )


def _by_another(function: Function, name: str, product: Op) -> bool:
    """Whether a value is multiplied by something that varies and is not made of the value."""
    factors = [origin(function, product.operand(key), CASTS) for key in ("x", "y")]
    others = [one for one in factors if one != name]
    return len(others) == 1 and not function.is_constant(others[0])
