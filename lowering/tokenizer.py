"""The tokenizer beside a checkpoint: written as Hugging Face files, and used from them."""

import json
import shutil
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from attrs import define, field, frozen

from topoc.dsl.diagnostic import Place, TopocError, error
from topoc.lowering.checkpoint.gguf import Gguf
from topoc.lowering.checkpoint.reader import Reader
from topoc.lowering.jsonfile import load
from topoc.lowering.reuse import Reuse
from topoc.lowering.sentencepiece import settings, vocabulary

TOKENIZER = "tokenizer.json"
SETTINGS = "tokenizer_config.json"
TEMPLATE = "chat_template.jinja"
LONGEST_CHARACTER = 4  # bytes, and so tokens
SHOWN = 24  # characters of a text that has no tokens
UNFINISHED = "\ufffd"  # what an incomplete character decodes to


def write_tokenizer(
    source: Reader | Path, directory: Path, reuse: Reuse | None = None
) -> tuple[Path, ...]:
    """The tokenizer's files, copied from a folder or made from a GGUF file's metadata."""
    if isinstance(source, Gguf):
        return _made(source, directory, reuse or Reuse(""))
    path = source if isinstance(source, Path) else source.path
    folder = path if path.is_dir() else path.parent
    if not (folder / TOKENIZER).is_file():
        found = f"there is no `{TOKENIZER}` beside the weights"
        way = "fetch it from where the checkpoint came from"
        if (folder / "tokenizer.model").is_file():
            way = "save the tokenizer with transformers, which turns `tokenizer.model` into it"
        raise TopocError(error("tokenizer.missing", found, Place(str(path)), help=way))
    names = [name for name in (TOKENIZER, SETTINGS, TEMPLATE) if (folder / name).is_file()]
    return tuple(Path(shutil.copyfile(folder / name, directory / name)) for name in names)


def find_tokenizer(reader: Reader, config: Path) -> Reader | Path | None:
    """What `write_tokenizer` takes for a checkpoint; None where nothing came with it.

    A GGUF file carries its own; else the folders of the weights and of the config are looked into.
    """
    if isinstance(reader, Gguf):
        return reader
    folders = [file.parent for file in reader.files[:1]] + [config.parent]
    carries = (TOKENIZER, "tokenizer.model")
    return next((one for one in folders if any((one / n).is_file() for n in carries)), None)


def _made(source: Gguf, directory: Path, reuse: Reuse) -> tuple[Path, ...]:
    """It takes seconds to turn the pieces of a large vocabulary into merges."""
    written = []
    for name, content in ((TOKENIZER, vocabulary), (SETTINGS, settings)):
        text = reuse.values(name, "tokenizer", (), partial(_json, content, source))
        (directory / name).write_bytes(text)
        written.append(directory / name)
    return tuple(written)


def _json(content: Callable[[Gguf], object], source: Gguf) -> bytes:
    text = json.dumps(content(source), ensure_ascii=False, separators=(",", ":"))
    return text.encode()


@frozen
class Tokenizer:
    """Text to token ids and back."""

    backend: Any = field(repr=False)  # tokenizers.Tokenizer, which has no types
    chat_template: str | None = field(default=None, repr=False)
    file: str = TOKENIZER  # how people know it

    def encode(self, text: str, *, bos: bool = True) -> list[int]:
        """Token ids, after the token that starts a sequence where the model wants one.

        Raises TopocError for a text that the vocabulary has no tokens for.
        """
        try:
            ids: list[int] = self.backend.encode(text, add_special_tokens=bos).ids
        except Exception as problem:  # noqa: BLE001 - the library raises no narrower class
            shown = text if len(text) <= SHOWN else f"{text[:SHOWN]}…"
            found = f"the tokenizer has no tokens for {shown!r}: {str(problem).rstrip('.')[:60]}"
            way = "give its vocabulary a token for what is unknown, and name that as `unk_token`"
            raise TopocError(
                error("tokenizer.no-token", found, Place(self.file), help=way)
            ) from None
        return ids

    def decode(self, ids: Sequence[int], *, special: bool = True) -> str:
        """Text; special tokens are spelled out or left away."""
        text: str = self.backend.decode(list(ids), skip_special_tokens=not special)
        return text

    def stream(self, *, special: bool = True) -> "Stream":
        """A decoder that takes ids one by one."""
        return Stream(self, special)


@define
class Stream:
    """Text out of ids that come one by one; a character comes once all its tokens have."""

    tokenizer: Tokenizer
    special: bool
    past: list[int] = field(factory=list)  # already given as text; decoders look one piece back
    pending: list[int] = field(factory=list)

    def push(self, token: int) -> str:
        """The text that is certain with this token."""
        self.pending.append(token)
        if not self._text(self.pending).endswith(UNFINISHED):
            return self._give(len(self.pending))
        # a character that wants more tokens began among the last few
        return self._give(max(0, len(self.pending) - LONGEST_CHARACTER + 1))

    def finish(self) -> str:
        """The text of what is still pending."""
        return self._give(len(self.pending))

    def _text(self, ids: list[int]) -> str:
        """What these ids add after the past ones."""
        before = self.tokenizer.decode(self.past, special=self.special)
        return self.tokenizer.decode(self.past + ids, special=self.special)[len(before) :]

    def _give(self, count: int) -> str:
        """The text of the first pending ids, which are past from now on."""
        given, self.pending = self.pending[:count], self.pending[count:]
        text = self._text(given)
        self.past = given if text else self.past + given
        return text


def load_tokenizer(directory: Path) -> Tokenizer:
    """The tokenizer whose files are in a folder."""
    from tokenizers import Tokenizer as Backend

    file = directory / TOKENIZER
    if not file.is_file():
        found = f"there is no `{TOKENIZER}` here"
        raise TopocError(error("tokenizer.missing", found, Place(str(directory))))
    try:
        backend = Backend.from_file(str(file))
    except Exception as problem:  # noqa: BLE001 - the library raises no narrower class
        found = f"the tokenizer does not load: {str(problem).rstrip('.')[:60]}"
        raise TopocError(error("tokenizer.unreadable", found, Place(str(file)))) from None
    return Tokenizer(backend, _template(directory), str(file))


def _template(directory: Path) -> str | None:
    """The chat template: a file of its own, or a field of the settings."""
    if (directory / TEMPLATE).is_file():
        return (directory / TEMPLATE).read_text(encoding="utf-8")
    if not (directory / SETTINGS).is_file():
        return None
    found = load(directory / SETTINGS, "settings", "tokenizer").get("chat_template")
    return found if isinstance(found, str) else None
