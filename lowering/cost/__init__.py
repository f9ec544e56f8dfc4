"""What a call costs: features of chunks, coefficients of chips, milliseconds with intervals."""

from topoc.lowering.cost.features import Features, Tally, features, tally
from topoc.lowering.cost.predict import Change, Estimate, call, change, chunk_ms, estimate
from topoc.lowering.cost.profile import Profile, choose, chips, shipped

__all__ = [
    "Change",
    "Estimate",
    "Features",
    "Profile",
    "Tally",
    "call",
    "change",
    "chips",
    "choose",
    "chunk_ms",
    "estimate",
    "features",
    "shipped",
    "tally",
]
