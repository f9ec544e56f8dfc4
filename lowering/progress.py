"""How far a compile is, told to whoever wants to hear."""

from typing import Protocol


class Progress(Protocol):
    """Hears of phases and of bytes of weights written."""

    def expect(self, total: int) -> None:
        """All phases together will write so many bytes."""

    def begin(self, phase: str, total: int) -> None:
        """A phase begins, and will write so many bytes; the one before it is over."""

    def advance(self, count: int) -> None:
        """So many bytes more are written."""


class Silent:
    """Tells nobody."""

    def expect(self, total: int) -> None:
        """Nothing."""

    def begin(self, phase: str, total: int) -> None:
        """Nothing."""

    def advance(self, count: int) -> None:
        """Nothing."""
