"""Where things of a topology stand in its text, and which findings are about them."""

from collections.abc import Iterable, Sequence
from pathlib import Path

from attrs import define, evolve, field

from topoc.dsl.diagnostic import Diagnostic, Place
from topoc.dsl.resolve.selector import listed
from topoc.dsl.source import Span
from topoc.lowering.cli.page import scene

_LONGEST = 160  # characters of a line


@define
class Places:
    """The findings of a topology, each told to whatever asks with the span that it lies in."""

    all: tuple[Diagnostic, ...]
    _about: dict[int, list[str | int]] = field(factory=dict, init=False)

    def findings(self, spans: Iterable[Span | None], about: str | int) -> tuple[scene.Finding, ...]:
        """The findings within any of these spans, which are then about this chunk or layer."""
        known = [one for one in spans if one is not None]
        found = [
            at
            for at, one in enumerate(self.all)
            for place in [label.at for label in (one.at, *one.related)]
            if any(_within(place, span) for span in known)
        ]
        found = list(dict.fromkeys(found))
        for at in found:
            words = self._about.setdefault(at, [])
            words += [] if about in words else [about]
        return tuple(self._finding(at) for at in found)

    def listed(self) -> tuple[scene.Finding, ...]:
        """All findings, with what was found to be about them."""
        return tuple(
            evolve(self._finding(at), about=_words(self._about.get(at, ())))
            for at in range(len(self.all))
        )

    def lines(self, spans: Iterable[Span | None]) -> tuple[scene.Line, ...]:
        """The lines that these spans begin in, each once."""
        found = (line_of(one) for one in spans if one is not None)
        return tuple(dict.fromkeys(found))

    def _finding(self, at: int) -> scene.Finding:
        place = self.all[at].at.at
        line = line_of(place) if isinstance(place, Span) else scene.Line(place=str(place), text="")
        return scene.Finding(number=at + 1, diagnostic=self.all[at], line=line)


def line_of(span: Span) -> scene.Line:
    """A line and its place; of a file its name alone, wherever it lies."""
    text = span.source.line_text(span.line).strip()
    short = text if len(text) <= _LONGEST else text[: _LONGEST - 1] + "…"
    return scene.Line(place=f"{Path(span.source.name).name}:{span.line}", text=short)


def _within(inner: Span | Place, outer: Span) -> bool:
    if isinstance(inner, Place):
        return False
    same = inner.source.name == outer.source.name
    return same and outer.start <= inner.start and inner.end <= outer.end


def _words(about: Sequence[str | int]) -> tuple[str, ...]:
    layers = sorted(one for one in about if isinstance(one, int))
    words = [one for one in about if isinstance(one, str)]
    return (*words, *([listed(layers)] if layers else []))
