"""What `run` and `trace` share: a bundle opened, its prompt as tokens, its predictor."""

from typing import Literal, Self

from attrs import define, frozen

from topoc.dsl.diagnostic import Place, TopocError, error
from topoc.lowering.bundle.reader import Bundle
from topoc.lowering.engine.chat import chat_prompt
from topoc.lowering.engine.driver import Engine, Predictor
from topoc.lowering.tokenizer import Stream, Tokenizer, load_tokenizer

EngineName = Literal["interpreter", "coreml"]


@frozen
class Prompt:
    """A prompt as it was asked for: a text, or token ids."""

    text: str | None = None
    ids: tuple[int, ...] | None = None
    chat: bool = False

    def tokens(self, bundle: Bundle, tokenizer: Tokenizer | None) -> list[int]:
        """Its tokens; a text needs the bundle's tokenizer."""
        if self.ids is not None:
            return list(self.ids)
        if tokenizer is None:
            message = f"`{bundle.manifest.name}` has no tokenizer"
            remedy = "give token ids with `--prompt-ids 2,651`"
            place = Place(str(bundle.path))
            raise TopocError(error("run.no-tokenizer", message, place, help=remedy))
        text = self.text or ""
        if self.chat:
            return tokenizer.encode(chat_prompt(bundle.path, tokenizer, text), bos=False)
        return tokenizer.encode(text, bos=True)


def tokenizer_of(bundle: Bundle) -> Tokenizer | None:
    """The bundle's tokenizer, where it has one."""
    if not bundle.manifest.tokenizer:
        return None
    return load_tokenizer(bundle.path)


def predictor_of(bundle: Bundle, engine: EngineName, *, rounding: bool) -> Predictor:
    """The predictor of this name."""
    from topoc.lowering.engine.predict import CoreMLPredictor, InterpreterPredictor

    if engine == "coreml":
        return CoreMLPredictor(bundle)
    return InterpreterPredictor(bundle, rounding)


def session_of(bundle: Bundle, engine: EngineName, *, rounding: bool) -> Engine:
    """A new session."""
    return Engine(bundle, predictor_of(bundle, engine, rounding=rounding))


@define
class Speech:
    """Tokens to text as they come; without a tokenizer, their numbers."""

    _stream: Stream | None

    @classmethod
    def after(cls, prompt: list[int], tokenizer: Tokenizer | None) -> Self:
        """What follows a prompt, whose end tells how the first token is spelled."""
        if tokenizer is None:
            return cls(None)
        return cls(Stream(tokenizer, special=False, past=prompt[-4:]))

    def say(self, token: int) -> str:
        """What this token adds."""
        return f"{token} " if self._stream is None else self._stream.push(token)

    def rest(self) -> str:
        """What is still untold at the end."""
        return "" if self._stream is None else self._stream.finish()
