"""Thresholds of placement rules, as data: what was seen, where and when."""

from attrs import frozen

from topoc.dsl.plain import Plain


@frozen(kw_only=True, eq=False, repr=False)
class Limit(Plain):
    """From which value on a finding is a note, a warning, an error."""

    note: float
    warning: float
    error: float
    source: str
    date: str


# Figures of Gemma 4 on an iPhone 17 Pro: chunks of 20 and 21 layers ran, 35 layers did not load.
# The note stands where older systems were seen to hang.
LAYERS_PER_CHUNK = Limit(
    note=15,
    warning=22,
    error=35,
    source="CoreML-LLM docs/CHUNK_CONSOLIDATION_BENCH.md:188-215",
    date="2026-04-17",
)
