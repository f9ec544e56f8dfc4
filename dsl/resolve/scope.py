"""What names stand for while a topology is resolved, and values in their light."""

from collections.abc import Iterable, Mapping

from attrs import define, field, frozen

from topoc.dsl import ast
from topoc.dsl.diagnostic import Diagnostic, error
from topoc.dsl.model import Layers
from topoc.dsl.plain import Plain
from topoc.dsl.source import Span
from topoc.dsl.suggest import advice, quoted

_UNITS = {"B": 1, "kB": 1e3, "MB": 1e6, "GB": 1e9, "ms": 1, "s": 1e3, "%": 0.01, "tok/s": 1, "": 1}

_WIDEST = 24  # characters of a range in a message
_MOST = 2**31 - 1  # what sizes and indices of the accelerator can hold

Argument = int | str


@frozen(eq=False, repr=False)
class Option(Plain):
    """One argument that a call takes: a whole number, or one of some words."""

    name: str
    words: tuple[str, ...] = ()  # none: a whole number
    required: bool = False
    numbers: tuple[int, ...] = ()  # none: any from `least`
    least: int = 1
    bare: bool = False  # may stand without its name
    any_word: bool = False
    or_number: bool = False  # a word of `words`, or a whole number


@define(eq=False, repr=False)
class Scope:
    """Parameters, the layer table, and the findings so far."""

    params: Mapping[str, float]
    layers: Layers
    findings: list[Diagnostic]
    used: set[str] = field(factory=set)

    def report(self, finding: Diagnostic) -> None:
        """Note a finding and go on."""
        self.findings.append(finding)

    def unknown(self, code: str, word: str, known: Iterable[str], at: Span, what: str) -> None:
        """Report a word that is not among the known ones."""
        help_ = advice(word, known, "there are")
        self.report(error(code, f"there is no {what} `{word}`", at, help=help_))

    def number(self, value: ast.Value) -> tuple[float, str] | None:
        """A number and its unit; parameters are looked up."""
        if isinstance(value, ast.Number):
            return value.value, value.unit
        if isinstance(value, ast.Word) and value.text.isupper():
            self.used.add(value.text)
            if value.text in self.params:
                return self.params[value.text], ""
            help_ = advice(value.text, self.params, "there are")
            help_ = help_ or f"add a line `param {value.text} = NUMBER`"
            message = f"there is no parameter `{value.text}`"
            self.report(error("param.unknown", message, value.span, help=help_))
            return None
        help_ = "write a number, or a parameter in capitals"
        message = f"`{value.span.text}` is no number"
        self.report(error("value.type", message, value.span, help=help_))
        return None

    def whole(self, value: ast.Value, least: int = 1) -> int | None:
        """A whole number without a unit, not below `least`."""
        found = self.number(value)
        if found is None:
            return None
        number, unit = found
        if unit or number != int(number):
            message = f"`{value.span.text}` is no whole number without a unit"
            help_ = "it is counted in whole things, so that neither point nor unit fits"
            self.report(error("value.type", message, value.span, help=help_))
            return None
        if not least <= number <= _MOST:
            message = f"{number:.0f} is not between {least} and {_MOST}"
            help_ = f"write at least {least}" if number < least else f"write at most {_MOST}"
            self.report(error("value.range", message, value.span, help=help_))
            return None
        return int(number)

    def scaled(self, value: ast.Value, units: tuple[str, ...]) -> float | None:
        """A number in bytes, ms, a share of one, or plain."""
        found = self.number(value)
        if found is None:
            return None
        number, unit = found
        if unit not in units:
            wanted = quoted(one for one in units if one)
            message = f"`{value.span.text}` has a unit where plain numbers are compared"
            help_ = "leave the unit out"
            if wanted:
                message = f"`{value.span.text}` has none of the units {wanted}"
                help_ = "write the unit behind the number"
            self.report(error("value.type", message, value.span, help=help_))
            return None
        return number * _UNITS[unit]

    def span_of(self, layers: ast.Range, *, beyond: str = "layer.out-of-range") -> range | None:
        """The layer numbers of a range; backwards or beyond the model is an error."""
        most = len(self.layers.layers) - 1
        if max(layers.first, layers.last) > most:
            message = f"the model has layers L0 to L{most}, and `{shortened(layers)}` goes beyond"
            help_ = f"the last layer is `L{most}`; both ends of a range count"
            self.report(error(beyond, message, layers.span, help=help_))
            return None
        if layers.first > layers.last:
            message = f"`{layers}` runs backwards"
            turned = f"write `L{layers.last}-{layers.first}`"
            self.report(error("layer.backwards", message, layers.span, help=turned))
            return None
        return range(layers.first, layers.last + 1)


def shortened(layers: ast.Range) -> str:
    """A range as it is written, unless its digits have no end."""
    text = layers.span.text
    return text if len(text) <= _WIDEST else f"{text[:_WIDEST]}…"
