"""What a call costs: features of chunks, coefficients of chips, milliseconds with intervals."""

from topoc.lowering.cost.features import Features, Tally, features, tally
from topoc.lowering.cost.predict import (
    Change,
    Estimate,
    attoseconds,
    call,
    change,
    chunk_ms,
    chunk_time,
    estimate,
)
from topoc.lowering.cost.profile import Profile, chips, choose, shipped

__all__ = [
    "Change",
    "Estimate",
    "Features",
    "Profile",
    "Tally",
    "attoseconds",
    "call",
    "change",
    "chips",
    "choose",
    "chunk_ms",
    "chunk_time",
    "estimate",
    "features",
    "shipped",
    "tally",
]
