"""What a function's features may refer to, and how a disagreement with it is told."""

from attrs import evolve, field, frozen

from topoc.lowering.bundle.writes import Writes, writes_of
from topoc.lowering.manifest import Buffer, Function, Manifest, Output


@frozen
class Problem:
    """A disagreement, and the field where it stands, as the end of a JSON path."""

    code: str
    message: str
    part: str = ""

    def at(self, part: str) -> "Problem":
        """The same, told from further up."""
        return evolve(self, part=part + self.part)


@frozen
class Scope:
    """One function of a manifest; `values` grows from step to step."""

    manifest: Manifest
    function: Function
    values: dict[str, Output] = field(factory=dict, init=False)
    writes: Writes = field(init=False)

    @writes.default
    def _writes(self) -> Writes:
        return writes_of(self.function)

    def buffer(self, name: str | None) -> Buffer | None:
        """The buffer of this id."""
        return next((one for one in self.manifest.buffers if one.id == name), None)


def unknown(what: str, name: str | None, part: str) -> Problem:
    """A name that nothing has."""
    return Problem("bundle.unknown-name", f"no {what} is called `{name}`", part)
