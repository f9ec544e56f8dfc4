"""A prompt in the chat template that the checkpoint came with."""

import json
from pathlib import Path

from topoc.dsl.diagnostic import Place, TopocError, error
from topoc.lowering.tokenizer import SETTINGS, TEMPLATE, Tokenizer


def chat_prompt(directory: Path, tokenizer: Tokenizer, message: str) -> str:
    """One user message as the model expects it, ready for its answer.

    The template is not trusted: it runs in jinja2's sandbox and sees the message alone.
    """
    place = Place(str(directory))
    if tokenizer.chat_template is None:
        words = f"the bundle has no `{TEMPLATE}`"
        remedy = "leave out `--chat`, or compile from a checkpoint with a chat template"
        raise TopocError(error("run.no-chat-template", words, place, help=remedy))
    from jinja2 import TemplateError
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
    environment.globals["raise_exception"] = _raise
    try:
        return environment.from_string(tokenizer.chat_template).render(
            messages=[{"role": "user", "content": message}],
            add_generation_prompt=True,
            **_special_tokens(directory),
        )
    except (TemplateError, TypeError, ValueError) as found:
        why = str(found).partition("\n")[0]
        words = f"the chat template can't be filled: {why}"
        remedy = "leave out `--chat` and write the turns into the prompt"
        failure = error("run.chat-template", words, place, help=remedy)
        raise TopocError(failure) from found


def _raise(words: str) -> None:
    """What templates call to refuse a conversation."""
    from jinja2 import TemplateError

    raise TemplateError(words)


def _special_tokens(directory: Path) -> dict[str, str]:
    """The texts of the special tokens; a token stands there as a text or as its settings."""
    path = directory / SETTINGS
    if not path.is_file():
        return {}
    config = json.loads(path.read_text(encoding="utf-8"))
    found = {}
    for name in ("bos_token", "eos_token", "unk_token", "pad_token"):
        token = config.get(name)
        text = token.get("content") if isinstance(token, dict) else token
        if isinstance(text, str):
            found[name] = text
    return found
