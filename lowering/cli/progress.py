"""Progress as people read it: one line a phase, on stderr, with the time that is left."""

from time import monotonic

from attrs import define, field

from topoc.dsl.cli import view
from topoc.lowering.cli.size import size


@define
class Lines:
    """Tells a phase when it begins; the estimate grows out of the bytes written so far."""

    _total: int = 0
    _done: int = 0
    _begun: float = field(factory=monotonic)
    _writing: float = 0.0

    def expect(self, total: int) -> None:
        """From here on, bytes count."""
        self._total, self._writing = total, monotonic()

    def begin(self, phase: str, total: int) -> None:
        """One line."""
        told = f"{size(total):>10}" if total else ""
        view.progress(
            f"{monotonic() - self._begun:6.1f} s  {phase:30}{told}{self._left()}".rstrip()
        )

    def advance(self, count: int) -> None:
        """Count, and print nothing."""
        self._done += count

    def _left(self) -> str:
        if not self._total or not self._done:
            return ""
        spent = monotonic() - self._writing
        left = spent * (self._total - self._done) / self._done
        return f"  {self._done / self._total:4.0%} written, about {left:.0f} s left"
