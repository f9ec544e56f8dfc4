"""The milliseconds of a plan, function by function, where the unit and its chip were measured."""

from attrs import frozen

from topoc.dsl.model import Chunk, Function, Topology
from topoc.dsl.plain import Plain
from topoc.lowering.cli.milliseconds import Ms, milliseconds
from topoc.lowering.cost.features import features
from topoc.lowering.cost.predict import call, estimate
from topoc.lowering.cost.profile import Profile

_MEASURED = "ane"  # what the rows of profiles ran on


@frozen(eq=False, repr=False)
class Times(Plain):
    """A topology and the costs of a chip."""

    topology: Topology
    costs: Profile

    def chunk(self, function: str, chunk: str) -> Ms | None:
        """What one chunk's call takes."""
        found = self._named(function)
        if found is None:
            return None
        chunks = self.topology.chunks_of(found)
        for one, moved in zip(chunks, features(self.topology, found), strict=True):
            if one.name == chunk and self._unit(found, one) == _MEASURED:
                return milliseconds(estimate(self.costs, moved))
        return None

    def call(self, function: str) -> Ms | None:
        """What a whole call takes, the host's own time included; null if a chunk is elsewhere."""
        found = self._named(function)
        if found is None:
            return None
        if any(self._unit(found, one) != _MEASURED for one in self.topology.chunks_of(found)):
            return None
        return milliseconds(call(self.costs, features(self.topology, found)))

    def _named(self, name: str) -> Function | None:
        return next((one for one in self.topology.functions if one.name == name), None)

    def _unit(self, function: Function, chunk: Chunk) -> str:
        return chunk.unit or function.unit or self.topology.target.unit
