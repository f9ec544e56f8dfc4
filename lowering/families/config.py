"""A `config.json`, taken field by field with its types checked and everything wrong gathered."""

from collections.abc import Mapping, Sequence
from math import isfinite
from pathlib import Path
from typing import TypeVar

from attrs import define, field

from topoc.dsl.diagnostic import Diagnostic, Place, error
from topoc.lowering.jsonfile import named

LARGEST_COUNT = (1 << 31) - 1

T = TypeVar("T")


@define(eq=False, repr=False)
class Fields:
    """The fields of one JSON object; a field that is not there takes the family's default."""

    file: Path
    values: Mapping[str, object]
    path: str = ""  # of this object in the config: "text_config."
    findings: list[Diagnostic] = field(factory=list)
    notices: list[str] = field(factory=list)
    taken: set[str] = field(factory=set)

    def count(self, name: str, default: int, *, least: int = 1, most: int = LARGEST_COUNT) -> int:
        """A whole number between two bounds."""
        value = self._value(name, default)
        if isinstance(value, bool) or not isinstance(value, int):
            return self._wrong(name, "a whole number", default)
        if not least <= value <= most:
            self.refuse(
                name, f"`{name}` is {str(value)[:20]} and must lie between {least} and {most}"
            )
            return default
        return value

    def number(self, name: str, default: float) -> float:
        """A finite number above zero."""
        value = self._value(name, default)
        if isinstance(value, bool) or not isinstance(value, int | float):
            return self._wrong(name, "a number", default)
        if not 0 < value <= LARGEST_COUNT or not isfinite(value):
            self.refuse(name, f"`{name}` must be a finite number above zero")
            return default
        return float(value)

    def optional_number(self, name: str) -> float | None:
        """A finite number above zero; nothing where the field is absent or null."""
        self.taken.add(name)
        return None if self.values.get(name) is None else self.number(name, 1.0)

    def flag(self, name: str, *, default: bool) -> bool:
        """True or false."""
        value = self._value(name, default)
        return value if isinstance(value, bool) else self._wrong(name, "true or false", default)

    def text(self, name: str, default: str) -> str:
        """A string."""
        value = self._value(name, default)
        return value if isinstance(value, str) else self._wrong(name, "text", default)

    def ids(self, name: str, default: tuple[int, ...]) -> tuple[int, ...]:
        """Token ids: one, a list, or null for none."""
        value = self._value(name, default[0] if len(default) == 1 else list(default))
        if value is None:
            return ()
        several = value if isinstance(value, list) else [value]
        if any(isinstance(one, bool) or not isinstance(one, int) or one < 0 for one in several):
            return self._wrong(name, "a token id or a list of them", default)
        return tuple(dict.fromkeys(several))

    def within(self, name: str) -> "Fields":
        """The fields of an object in this one; none where it is absent or null."""
        self.taken.add(name)
        value = self.values.get(name)
        if value is not None and not isinstance(value, dict):
            self._wrong(name, "an object", value)
        values = value if isinstance(value, dict) else {}
        path = f"{self.path}{name}."
        return Fields(self.file, values, path, self.findings, self.notices)

    def has(self, name: str) -> bool:
        """Whether the field is there and not null."""
        return self.values.get(name) is not None

    def refuse(
        self, name: str, message: str, *, code: str = "model.malformed", way: str = ""
    ) -> None:
        """Note a finding about one field."""
        self.findings.append(
            error(code, message, Place(str(self.file), self.path + name), help=way)
        )

    def neutral(self, allowed: Sequence[tuple[str, tuple[object, ...]]]) -> None:
        """Refuse fields that ask for what has no lowering, unless they hold a neutral value."""
        for name, values in allowed:
            self.taken.add(name)
            value = self.values.get(name)
            if value is not None and not any(value is one or value == one for one in values):
                found = f"`{name}` is {named(value)} and has no lowering"
                self.refuse(name, found, code="model.not-lowered")

    def finish(self, harmless: frozenset[str]) -> None:
        """Refuse every field that was neither taken nor is known to change nothing."""
        for name in sorted(self.values.keys() - self.taken - harmless):
            if self.has(name):
                found = f"field `{name[:60]}` is not known and may change what the model computes"
                way = "check what it means, and take it out if it changes nothing"
                self.refuse(name, found, code="model.not-lowered", way=way)

    def _value(self, name: str, default: object) -> object:
        self.taken.add(name)
        if name not in self.values:
            self.notices.append(f"`{self.path}{name}` is not given, and the family's is {default}")
            return default
        return self.values[name]

    def _wrong(self, name: str, wanted: str, default: T) -> T:
        self.refuse(name, f"`{name}` is {named(self.values[name])} and not {wanted}")
        return default
