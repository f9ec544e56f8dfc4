"""Units, systems and chips, and the thresholds that hold on them."""

from pathlib import Path

from topoc.dsl.targets.names import CHIPS, DEPLOYMENTS

COSTS = Path(__file__).parent / "costs"


def costs_of(chip: str | None) -> Path | None:
    """The file of what calls cost on a chip, if it was measured; `lowering.cost` reads it."""
    path = COSTS / f"{chip}.json"
    return path if chip in CHIPS and path.is_file() else None


__all__ = ["CHIPS", "COSTS", "DEPLOYMENTS", "costs_of"]
