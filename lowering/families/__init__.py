"""Model families: each turns its `config.json` into an `Architecture`, and is one file."""

from collections.abc import Callable, Mapping
from pathlib import Path

from topoc.dsl.diagnostic import Place, TopocError, error
from topoc.lowering.architecture import Architecture
from topoc.lowering.families import gemma3, gemma4

Family = Callable[[Mapping[str, object], Path], Architecture]

FAMILIES: tuple[tuple[str, Family], ...] = (
    ("gemma3", gemma3.read_nested),  # the text model is its `text_config`
    ("gemma3_text", gemma3.read),
    ("gemma4", gemma4.read_nested),
    ("gemma4_text", gemma4.read),
)


def of(config: Mapping[str, object], file: Path) -> Family:
    """The reader for the `model_type` of a config."""
    name = config.get("model_type")
    for known, family in FAMILIES:
        if name == known:
            return family
    found = f"model type `{name}` has no lowering"
    if not isinstance(name, str):
        found = "the config names no model type"
    choices = ", ".join(f"`{known}`" for known, _ in FAMILIES)
    place = Place(str(file), "model_type")
    raise TopocError(error("model.not-lowered", found, place, help=f"use one of {choices}"))
