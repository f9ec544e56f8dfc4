"""What is measured of a checkpoint before anything is built, once for all its compiles."""

from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from cattrs import structure, unstructure

from topoc.lowering.architecture import Architecture
from topoc.lowering.calibration import TEXT, Text, calibration_tokens
from topoc.lowering.checkpoint.weights import Weights
from topoc.lowering.rescale import Range
from topoc.lowering.reuse import Reuse
from topoc.lowering.tokenizer import TOKENIZER

if TYPE_CHECKING:
    from topoc.lowering.interpret.calibrate import Inputs


def tokens(architecture: Architecture, tokenizer: Path | None, reuse: Reuse) -> list[int]:
    """What the residual stream is measured on; it takes a second to load a large tokenizer."""
    if tokenizer is None:
        return calibration_tokens(architecture, None)
    file = sha256((tokenizer / TOKENIZER).read_bytes()).hexdigest()
    decides = (TEXT, file, architecture.bos, architecture.reach)
    found: list[int] = reuse.value(
        "tokens", decides, lambda: calibration_tokens(architecture, tokenizer)
    )
    return found


def ranges(
    architecture: Architecture, weights: Weights, tokens: list[int], reuse: Reuse
) -> tuple[Range, ...]:
    """How far the residual stream swings on these tokens, layer by layer."""
    config = architecture.config.read_bytes()

    def measured() -> Any:  # as JSON has it
        from topoc.lowering.interpret.ranges import measure

        return unstructure(measure(architecture, weights, tokens))

    found = reuse.value("residual stream", (config, tokens), measured)
    return structure(found, tuple[Range, ...])


def inputs(
    architecture: Architecture, weights: Weights, text: Text, folder: Path | None, reuse: Reuse
) -> "Inputs":
    """What projections read over a text.

    With a folder their products too, which are too large to be kept for another compile.
    """
    from topoc.lowering.interpret.calibrate import Inputs, calibrate

    if folder is not None:
        return calibrate(architecture, weights, text, folder)

    def watched() -> Any:  # as JSON has it
        seen = calibrate(architecture, weights, text)
        by_role = {role: one.tolist() for role, one in seen.power.items()}
        kept = {role: one.tolist() for role, one in seen.held_out.items()}
        return {"power": by_role, "held_out": kept, "peaks": dict(seen.peaks)}

    config = architecture.config.read_bytes()
    told = reuse.value("inputs of projections", (config, digest(text)), watched)
    return Inputs(
        tokens=sum(map(len, text.seen)),
        digest=digest(text),
        power={role: np.array(one) for role, one in told["power"].items()},
        held_out={role: np.array(one) for role, one in told["held_out"].items()},
        peaks=told["peaks"],
    )


def digest(text: Text) -> str:
    """What is known of the figures over a text before they are made."""
    from topoc.lowering.interpret import calibrate

    return calibrate.digest(text)
