"""Where weights are when nobody says: beside the config, or in Hugging Face's local cache."""

import json
import os
from pathlib import Path

from topoc.dsl.diagnostic import Place, TopocError, error
from topoc.lowering.checkpoint.open import INDEX, SINGLE

WAYS = (
    "name some with --weights: a folder of safetensors, a .safetensors or .gguf file, or"
    " random:0 to look at the layout without any"
)


def find_weights(config: Path) -> Path:
    """The folder that holds the safetensors of a config.

    A snapshot of the cache counts when its own config says the same. Raises TopocError with the
    ways to name weights where none are found.
    """
    for folder in (config.parent, *_snapshots(config)):
        if (folder / SINGLE).exists() or (folder / INDEX).exists():
            return folder
    words = f"no weights stand beside `{config.name}`, and the local cache has none for it"
    raise TopocError(error("checkpoint.missing-file", words, Place(str(config)), help=WAYS))


def _snapshots(config: Path) -> list[Path]:
    wanted = _json(config)
    try:
        found = sorted(_hub().glob("models--*/snapshots/*/config.json"))
        return [one.parent for one in found if _json(one) == wanted]
    except PermissionError:  # somebody else's cache has nothing for us
        return []


def _hub() -> Path:
    """The cache's folder, as huggingface_hub looks it up."""
    home = Path(os.environ.get("HF_HOME", Path.home() / ".cache" / "huggingface"))
    return Path(os.environ.get("HF_HUB_CACHE", home / "hub"))


def _json(path: Path) -> object:
    """What a file holds, or its text where that is no JSON: then it equals no config."""
    text = path.read_text(encoding="utf-8", errors="replace")
    try:
        return json.loads(text)
    except ValueError:
        return text
