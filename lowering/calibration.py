"""The tokens that a checkpoint's ranges are measured on."""

from pathlib import Path

from topoc.lowering.architecture import Architecture
from topoc.lowering.tokenizer import load_tokenizer

TEXT = (
    "The harbour town wakes early: boats leave before 5 a.m., and by noon 1,200 crates of fish"
    " have been weighed, priced and sold."
)
SPREAD = 29  # tokens taken from all over the vocabulary where there is no tokenizer


def calibration_tokens(architecture: Architecture, tokenizer: Path | None) -> list[int]:
    """BOS, whose residual swings widest by far, then a sentence.

    Without a tokenizer the sentence is ids spread evenly over the vocabulary.
    """
    reach = architecture.reach
    first = [one for one in architecture.bos[:1] if one < reach] or [0]
    if tokenizer is None:
        return first + list(range(0, reach, max(1, reach // SPREAD)))
    ids = load_tokenizer(tokenizer).encode(TEXT, bos=False)
    return first + [one for one in ids if one < reach]
