"""Texts and places in them."""

from bisect import bisect_right
from functools import cached_property

from attrs import field, frozen

from topoc.dsl.plain import Plain


@frozen(eq=False, repr=False, slots=False)
class Source(Plain):
    """A text and the name that people know it by."""

    name: str
    text: str = field(repr=False)

    @cached_property
    def line_starts(self) -> tuple[int, ...]:
        """The offset of the first character of each line."""
        return (0, *(at + 1 for at, char in enumerate(self.text) if char == "\n"))

    def line_text(self, line: int) -> str:
        """The text of a 1-based line, without its end."""
        start = self.line_starts[line - 1]
        end = self.text.find("\n", start)
        return self.text[start : end if end >= 0 else len(self.text)].removesuffix("\r")


@frozen(eq=False, repr=False)
class Span(Plain):
    """A half-open range of character offsets in one source."""

    source: Source = field(repr=False)
    start: int
    end: int

    @property
    def line(self) -> int:
        """The 1-based line of the first character."""
        return bisect_right(self.source.line_starts, self.start)

    @property
    def column(self) -> int:
        """The 1-based column, in characters, of the first character."""
        return self.start - self.source.line_starts[self.line - 1] + 1

    @property
    def text(self) -> str:
        """The characters of the range."""
        return self.source.text[self.start : self.end]

    def __str__(self) -> str:
        return f"{self.source.name}:{self.line}:{self.column}"
