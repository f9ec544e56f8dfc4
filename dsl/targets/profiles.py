"""The profiles of all chips, and the figures that they rest on.

The figures come from two devices: an iPhone 17 Pro (A19 Pro, iOS 26) and Macs with an M3 or M4
(macOS 26), all with coremltools 9.0. Other chips borrow those of the nearest relative and say so.
"""

from attrs import evolve

from topoc.dsl.targets.limits import Limit
from topoc.dsl.targets.names import CHIPS
from topoc.dsl.targets.profile import Profile

_BENCH = "CoreML-LLM docs/CHUNK_CONSOLIDATION_BENCH.md"

# Sizes in bytes, counts plain. A phone is where most of them were found.
_PHONE = {
    # 20 and 21 layers ran, 35 did not load; the note stands where older systems hung.
    "layers per chunk": Limit(
        note=15, warning=22, error=35, source=f"{_BENCH}:188-215", date="2026-04-17"
    ),
    # 1.4 GB ran and 1.8 GB did not for one model; another ran with 3.9 GB.
    "fp16 per chunk": Limit(
        note=1.4e9, warning=4e9, source="CoreML-LLM docs/QWEN35_LESSONS.md:47-66", date="2026-04-28"
    ),
    # The compiler's helper crashed at 1.8 GB and took 0.6 GB.
    "fp16 with a table": Limit(
        warning=0.6e9,
        error=1.8e9,
        source="CoreML-LLM Sources/CoreMLLLM/Qwen35Generator.swift:209-212",
        date="2026-04-28",
    ),
    # 15 layers beside the projection lost a tenth of their speed, 8 lost nothing.
    "layers beside side work": Limit(
        note=9,
        warning=15,
        source="CoreML-LLM docs/TOPOLOGY_I_IPHONE_BENCH.md:20-50",
        date="2026-04-24",
    ),
    # 16 programs slowed each other down; 119 is the most that one process compiled.
    "resident programs": Limit(
        warning=16,
        error=128,
        source="CoreML-LLM docs/IPHONE_ANE_SPARSITY_FINDING.md:49-58",
        date="2026-04-23",
    ),
    # 825 to 1,058 ops in a chunk that ran; a graph of 16,243 did not compile.
    "ops per chunk": Limit(
        warning=5_000,
        source="CoreML-LLM docs/KICKOFF_S0.md:30-36 and docs/MLSTATE_PATTERN.md:131",
        date="2026-04-28",
    ),
    "states per chunk": Limit(
        error=3, source="CoreML-LLM docs/MLSTATE_PATTERN.md:17-30", date="2026-04-28"
    ),
    # A choice between ties went wrong over 248,320 classes.
    "classes of an argmax": Limit(
        note=200_000,
        source="CoreML-LLM docs/QWEN35_FULL_VOCAB_REP_PENALTY.md:7-19",
        date="2026-04-25",
    ),
    "classes of a topk": Limit(
        error=65_537, source="CoreML-LLM docs/MTP_PATH_C_FINDINGS.md:83-91", date="2026-04-22"
    ),
    "rows of a matmul scatter": Limit(
        warning=8,
        error=32,
        source="CoreML-LLM Sources/CoreMLLLM/Qwen3VL2BGenerator.swift:273-283",
        date="2026-04-26",
    ),
}

# What only phones refused is no fault on a Mac: 35 layers ran there at 30.8 tok/s.
_MAC = {
    **_PHONE,
    "layers per chunk": Limit(
        note=36,
        source="CoreML-LLM docs/SESSION_2026_04_26_STAGE3_PREFILL_BN.md:19-35",
        date="2026-04-26",
    ),
    "fp16 per chunk": Limit(
        note=1.4e9, source="CoreML-LLM docs/DECODE_STATE_LAYOUTS.md:45-55", date="2026-04-28"
    ),
    "fp16 with a table": Limit(
        note=0.6e9,
        source="CoreML-LLM Sources/CoreMLLLM/Qwen35Generator.swift:209-212",
        date="2026-04-28",
    ),
}

_DISPATCH = "the cost of one dispatch: sources say 0.3 to 13 ms"
_A19 = Profile(
    name="a19",
    device="phone",
    limits=_PHONE,
    unknown=(
        "how many operations a chunk may hold: nothing between 1,058 and 16,243 was tried",
        _DISPATCH,
    ),
)
_M4 = Profile(
    name="m4",
    device="mac",
    limits=_MAC,
    unknown=("how many layers a chunk may hold: 35 ran, more were not tried", _DISPATCH),
)
_OTHER = "every limit: no source measured one on this chip"


def _profile(chip: str) -> Profile:
    own = {"a19": _A19, "m3": evolve(_M4, name="m3"), "m4": _M4}
    if chip in own:
        return own[chip]
    relative = _M4 if chip.startswith("m") else _A19
    return evolve(relative, name=chip, borrowed=relative.name, unknown=(_OTHER,))


PROFILES = {chip: _profile(chip) for chip in CHIPS}
# A target without a chip may meet any: the strictest figures are a phone's.
ANY = evolve(_A19, name="any", device="any", borrowed="a19", unknown=("which chip is meant",))


def profile(chip: str | None) -> Profile:
    """The profile of a chip that a `target` line names, or the strictest."""
    return ANY if chip is None else PROFILES[chip]
