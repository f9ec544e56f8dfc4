"""The tokens that a checkpoint is watched on: its ranges, and what its projections read."""

from collections.abc import Iterable
from pathlib import Path

from attrs import frozen

from topoc.dsl.diagnostic import Place, TopocError, error
from topoc.dsl.source import Span
from topoc.lowering.architecture import Architecture
from topoc.lowering.compress.method import FEEDBACK_BITS
from topoc.lowering.compress.recipe import Palettize, Recipe
from topoc.lowering.tokenizer import load_tokenizer

TEXT = (
    "The harbour town wakes early: boats leave before 5 a.m., and by noon 1,200 crates of fish"
    " have been weighed, priced and sold."
)
SEEN = 4096  # tokens of a text that are calibrated on, at most
HELD_OUT = 1024  # those behind them that results are judged on, at most a quarter of all
WINDOW = 512  # tokens of one pass
LEAST = 256  # tokens below which nothing is learnt
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


Windows = tuple[tuple[int, ...], ...]
"""Runs of tokens, each of which a model reads from its beginning."""


@frozen
class Text:
    """The windows of a text: those to calibrate on, and those behind them to judge by."""

    seen: Windows
    held_out: Windows


def calibration_text(architecture: Architecture, tokenizer: Path | None, text: str) -> Text:
    """Tokens of a text; raises TopocError where there are too few, or no tokenizer."""
    ids = encoded(architecture, tokenizer, text, "--calibrate")
    if len(ids) < LEAST:
        words = f"the text to calibrate on has {len(ids)} tokens, and {LEAST} is the least"
        way = "a few thousand tokens of the sort that the model is for tell enough"
        raise TopocError(error("calibrate.too-short", words, Place("--calibrate"), help=way))
    held_out = min(HELD_OUT, len(ids) // 4)
    seen = min(SEEN, len(ids) - held_out)
    return Text(
        seen=windows(architecture, ids[:seen]),
        held_out=windows(architecture, ids[seen : seen + held_out]),
    )


def check_use(
    recipes: Iterable[Recipe], *, text: bool, feedback: bool, activations: Place | Span | None
) -> None:
    """Raise TopocError for a text or feedback that would change nothing, or where a text lacks.

    `activations` is what asks for activations in int8, whose scales only a text can tell.
    """
    bits = [one.bits for one in recipes if isinstance(one, Palettize)]
    if activations is not None and not text:
        words = "activations are quantised, and nothing tells how large they become"
        way = "name a text with --calibrate: its greatest values make the scales"
        raise TopocError(error("calibrate.missing", words, activations, help=way))
    if text and not bits and activations is None:
        words = "nothing is palettized, and a text helps nothing else than activations"
        raise TopocError(
            error("calibrate.unused", words, Place("--calibrate"), help="leave it out")
        )
    if feedback and not any(one <= FEEDBACK_BITS for one in bits):
        words = f"nothing is palettized at {FEEDBACK_BITS} bits or less, where error feedback helps"
        at = Place("--error-feedback")
        raise TopocError(error("calibrate.unused", words, at, help="leave it out"))


def encoded(architecture: Architecture, tokenizer: Path | None, text: str, given: str) -> list[int]:
    """The tokens of a text, without BOS, that have a row in every table.

    `given` is what asked for it, for an error where there is no tokenizer.
    """
    if tokenizer is None:
        words = "a text was given, and the checkpoint came without a tokenizer"
        way = "put `tokenizer.json` beside the weights"
        raise TopocError(error("tokenizer.missing", words, Place(given), help=way))
    ids = load_tokenizer(tokenizer).encode(text, bos=False)
    return [one for one in ids if one < architecture.reach]


def windows(architecture: Architecture, ids: list[int], width: int = WINDOW) -> Windows:
    """Runs of at most `width` tokens, each behind a BOS where the model has one."""
    first = tuple(one for one in architecture.bos[:1] if one < architecture.reach)
    step = width - len(first)
    return tuple((*first, *ids[at : at + step]) for at in range(0, len(ids), step))


def read_text(file: Path) -> str:
    """A file's text; raises TopocError if it is none, and OSError if it can't be read."""
    try:
        return file.read_text(encoding="utf-8")
    except UnicodeDecodeError as failure:
        words = f"`{file.name}` is not UTF-8 text: byte {failure.start} is 0x"
        words += f"{failure.object[failure.start]:02x}"
        way = "name a plain text file"
        raise TopocError(error("calibrate.not-text", words, Place(str(file)), help=way)) from None
