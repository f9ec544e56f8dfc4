"""What is measured of a checkpoint before anything is built, once for all its compiles."""

from typing import Any

from cattrs import structure, unstructure

from topoc.lowering.architecture import Architecture
from topoc.lowering.checkpoint.weights import Weights
from topoc.lowering.interpret.ranges import measure
from topoc.lowering.rescale import Range
from topoc.lowering.reuse import Reuse


def ranges(
    architecture: Architecture, weights: Weights, tokens: list[int], reuse: Reuse
) -> tuple[Range, ...]:
    """How far the residual stream swings on these tokens, layer by layer."""
    config = architecture.config.read_bytes()

    def measured() -> Any:  # as JSON has it
        return unstructure(measure(architecture, weights, tokens))

    found = reuse.value("residual stream", (config, tokens), measured)
    return structure(found, tuple[Range, ...])
