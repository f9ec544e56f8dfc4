"""The arguments of a call, checked against what it takes."""

from collections.abc import Sequence

from topoc.dsl import ast
from topoc.dsl.diagnostic import error
from topoc.dsl.resolve.scope import Argument, Option, Scope
from topoc.dsl.suggest import advice, quoted


def arguments(
    scope: Scope, call: ast.Call, options: Sequence[Option], code: str
) -> dict[str, Argument] | None:
    """The arguments by name, or None after an error was reported."""
    given: dict[str, Argument] = {}
    sound = True
    for argument in call.arguments:
        option = _option(scope, call, argument, options, code)
        value = None if option is None else _value(scope, argument, option, code)
        if option is None or value is None:
            sound = False
        elif option.name in given:
            message = f"`{option.name}` is given twice"
            scope.report(error(code, message, argument.span, help="keep the one that is meant"))
            sound = False
        else:
            given[option.name] = value
    named = {argument.name for argument in call.arguments} | set(given)
    for option in options:
        if option.required and option.name not in named and sound:
            message = f"`{call.name}` needs `{option.name}`"
            scope.report(error(code, message, call.span, help=_shape(call.name, options)))
            sound = False
    return given if sound else None


def _option(
    scope: Scope, call: ast.Call, argument: ast.Argument, options: Sequence[Option], code: str
) -> Option | None:
    """What an argument sets."""
    if argument.name is None:
        return _bare(scope, call, argument, options, code)
    for option in options:
        if option.name == argument.name:
            return option
    message = f"`{call.name}` takes no argument `{argument.name}`"
    help_ = advice(argument.name, [option.name for option in options], "it takes")
    help_ = help_ or f"write `{call.name}` alone"
    scope.report(error(code, message, argument.span, help=help_))
    return None


def _bare(
    scope: Scope, call: ast.Call, argument: ast.Argument, options: Sequence[Option], code: str
) -> Option | None:
    """What an argument without a name sets, where words may stand alone."""
    value = argument.value
    for option in options:
        if option.bare and isinstance(value, ast.Word):
            if option.any_word or value.text in option.words:
                return option
            known = [word for one in options if one.bare for word in one.words]
            scope.unknown(code, value.text, known, value.span, f"`{call.name}` setting")
            return None
    message = f"the arguments of `{call.name}` are named" if options else ""
    message = message or f"`{call.name}` takes no arguments"
    first = next((one for one in options if not one.bare), None)
    help_ = f"write `{call.name}` alone"
    if first:
        help_ = f"write `{call.name}({first.name} = {value.span.text})`"
    elif options:
        help_ = f"write {quoted(f'{call.name}({word})' for one in options for word in one.words)}"
    scope.report(error(code, message, argument.span, help=help_))
    return None


def _value(scope: Scope, argument: ast.Argument, option: Option, code: str) -> Argument | None:
    value = argument.value
    if option.words or option.any_word:
        shouted = isinstance(value, ast.Word) and value.text.isupper()
        if isinstance(value, ast.Word) and not shouted:
            if option.any_word or value.text in option.words:
                return value.text
            scope.unknown(code, value.text, option.words, value.span, f"`{option.name}`")
            return None
        if not option.or_number:
            wish = quoted(option.words) or "a name in small letters"
            message = f"`{option.name}` is no number, layer or text, as `{value.span.text}` is"
            scope.report(error(code, message, value.span, help=f"write {wish}"))
            return None
    number = scope.whole(value, option.least)
    if number is not None and option.numbers and number not in option.numbers:
        wish = quoted(str(one) for one in option.numbers)
        message = f"`{option.name}` can't be {number}"
        scope.report(error("value.range", message, value.span, help=f"write {wish}"))
        return None
    return number


def _shape(name: str, options: Sequence[Option]) -> str:
    """How a call with its required arguments is written."""
    needed = ", ".join(f"{one.name} = …" for one in options if one.required)
    return f"write `{name}({needed})`"
