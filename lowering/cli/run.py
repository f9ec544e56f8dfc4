"""`topoc run`: a bundle answers a prompt."""

import sys
from collections.abc import Iterator
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING

import click
from attrs import define, field

from topoc.dsl.diagnostic import TopocError

if TYPE_CHECKING:
    from topoc.lowering.engine.driver import Engine
    from topoc.lowering.engine.session import EngineName, Prompt, Speech
    from topoc.lowering.engine.speculation import Speculation


def _number(_: click.Context, __: click.Parameter, value: float) -> float:
    """A float option that is a number: NaN passes every range."""
    if value != value:  # noqa: PLR0124  # which is what NaN is
        message = "NaN is no number"
        raise click.BadParameter(message)
    return value


@click.command(name="run")
@click.argument("bundle", type=click.Path(path_type=Path))
@click.option("--prompt", help="The prompt; `-` reads it from stdin.")
@click.option("--prompt-ids", help="The prompt as token ids: 2,651,9.")
@click.option("--max-tokens", type=click.IntRange(min=1), default=128, show_default=True)
@click.option(
    "--temperature", type=click.FloatRange(min=0, max=100), default=0.0, show_default=True
)
@click.option("--top-k", type=click.IntRange(min=1), help="Draw from the K best tokens.")
@click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True)
@click.option("--speculate", is_flag=True, help="Verify drafts from the text so far; same text.")
@click.option("--chat", is_flag=True, help="Put the prompt into the bundle's chat template.")
@click.option(
    "--engine",
    type=click.Choice(["interpreter", "coreml"]),
    default="interpreter",
    show_default=True,
)
@click.option("--rounding", is_flag=True, help="Round to fp16 after each op, as a device does.")
def command(
    bundle: Path,
    prompt: str | None,
    prompt_ids: str | None,
    *,
    max_tokens: int,
    temperature: float,
    top_k: int | None,
    seed: int,
    speculate: bool,
    chat: bool,
    engine: "EngineName",
    rounding: bool,
) -> None:
    """Generate text with the BUNDLE; the text goes to stdout, timings to stderr."""
    from topoc.lowering.bundle.reader import open_bundle
    from topoc.lowering.engine.sampling import sampler
    from topoc.lowering.engine.session import Speech, session_of, tokenizer_of

    asked = prompt_of(prompt, prompt_ids, chat=chat)
    opened = open_bundle(bundle)
    choose = sampler(opened.manifest, temperature=temperature, top_k=top_k, seed=seed)
    tokenizer = tokenizer_of(opened)
    tokens = asked.tokens(opened, tokenizer)
    session = session_of(opened, engine, rounding=rounding)
    clock = Clock(len(tokens), _drafts(session) if speculate else None)
    stop = set(opened.manifest.model.eos)
    answer = (clock.drafts or session).generate(tokens, max_tokens, choose, stop)
    _speak(clock.timed(answer), Speech.after(tokens, tokenizer), clock)
    _tell_the_end(session)


def _drafts(session: "Engine") -> "Speculation":
    """Drafts for a session; refused where the bundle has no function to verify them."""
    from topoc.lowering.engine.speculation import Speculation

    return Speculation(session)


def _tell_the_end(session: "Engine") -> None:
    """Say so where the context cut the text off."""
    context = session.bundle.manifest.model.context
    if session.position == context:
        click.echo(f"the context of {context} tokens is full", err=True)


def prompt_of(text: str | None, ids: str | None, *, chat: bool) -> "Prompt":
    """The prompt that the options name; exactly one of them does."""
    from topoc.lowering.engine.session import Prompt

    if (text is None) == (ids is None):
        message = "give one of --prompt and --prompt-ids"
        raise click.UsageError(message)
    if ids is None:
        return Prompt(text=_text(text or ""), chat=chat)
    if chat:
        message = "--chat needs a text: give --prompt"
        raise click.UsageError(message)
    try:
        return Prompt(ids=tuple(int(one) for one in ids.split(",")))
    except ValueError as found:
        message = f"--prompt-ids takes numbers as in 2,651,9, not {ids!r}"
        raise click.UsageError(message) from found


def _text(prompt: str) -> str:
    """The prompt, or standard input; it must be text in UTF-8."""
    if prompt == "-":
        if sys.stdin is None:
            message = "--prompt - reads standard input, which is closed"
            raise click.UsageError(message)
        prompt = sys.stdin.read()
    if any("\ud800" <= one <= "\udfff" for one in prompt):
        message = "the prompt is not UTF-8"
        raise click.UsageError(message)
    return prompt


def _speak(tokens: Iterator[int], speech: "Speech", clock: "Clock") -> None:
    """Write the text as it comes; Ctrl-C ends it with what there is."""
    try:
        for token in tokens:
            click.echo(speech.say(token), nl=False)
            sys.stdout.flush()
    except KeyboardInterrupt:
        clock.ending = "interrupted"
    except TopocError:
        if clock.begun:
            click.echo(speech.rest())
        raise
    click.echo(speech.rest())
    click.echo(clock.summary(), err=True)


@define
class Clock:
    """When tokens came, and how many of the drafts were right."""

    prompt: int
    drafts: "Speculation | None" = None
    ending: str = field(default="", init=False)
    _start: float = field(factory=perf_counter, init=False)
    _times: list[float] = field(factory=list, init=False)

    @property
    def begun(self) -> bool:
        """Whether a token has come."""
        return bool(self._times)

    def timed(self, tokens: Iterator[int]) -> Iterator[int]:
        """The same tokens."""
        for token in tokens:
            self._times.append(perf_counter())
            yield token

    def summary(self) -> str:
        """One line: the prompt until the first token, then the rate of the others."""
        parts = [f"{self.prompt} prompt tokens"]
        if self._times:
            parts[0] += f" in {self._times[0] - self._start:.2f} s"
        parts.append(f"{len(self._times)} tokens")
        if len(self._times) > 1:
            rate = (len(self._times) - 1) / (self._times[-1] - self._times[0])
            parts[1] += f" at {rate:.1f} tokens/s"
        if self.drafts is not None:
            parts.append(f"{self.drafts.accepted} of {self.drafts.drafted} drafts accepted")
        return " · ".join([*parts, self.ending] if self.ending else parts)
