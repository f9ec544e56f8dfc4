"""Thresholds of placement rules: from which value on a finding is how grave, and who saw it."""

from attrs import frozen

from topoc.dsl.diagnostic import Severity
from topoc.dsl.plain import Plain


@frozen(kw_only=True, eq=False, repr=False)
class Limit(Plain):
    """From which value on a finding is a note, a warning, an error; None where it never is."""

    note: float | None = None
    warning: float | None = None
    error: float | None = None
    source: str
    date: str

    def rank(self, value: float) -> Severity | None:
        """How grave a value is, if at all."""
        if self.error is not None and value >= self.error:
            return Severity.ERROR
        if self.warning is not None and value >= self.warning:
            return Severity.WARNING
        return Severity.NOTE if self.note is not None and value >= self.note else None
