"""`topoc trace`: a run with every step's inputs and outputs on disk."""

from pathlib import Path
from typing import TYPE_CHECKING

import click

from topoc.lowering.cli.run import prompt_of

if TYPE_CHECKING:
    from topoc.lowering.engine.session import EngineName


@click.command(name="trace")
@click.argument("bundle", type=click.Path(path_type=Path))
@click.option("-o", "--output", type=click.Path(path_type=Path), required=True, metavar="DIR")
@click.option("--prompt", help="The prompt; `-` reads it from stdin.")
@click.option("--prompt-ids", help="The prompt as token ids: 2,651,9.")
@click.option("--max-tokens", type=click.IntRange(min=1), default=4, show_default=True)
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
    output: Path,
    prompt: str | None,
    prompt_ids: str | None,
    *,
    max_tokens: int,
    chat: bool,
    engine: "EngineName",
    rounding: bool,
) -> None:
    """Run the BUNDLE greedily and write each step's features into DIR."""
    from topoc.lowering.bundle.reader import open_bundle
    from topoc.lowering.engine.driver import Engine
    from topoc.lowering.engine.sampling import greedy
    from topoc.lowering.engine.session import predictor_of, tokenizer_of
    from topoc.lowering.engine.trace import TraceWriter

    asked = prompt_of(prompt, prompt_ids, chat=chat)
    opened = open_bundle(bundle)
    tokens = asked.tokens(opened, tokenizer_of(opened))
    predictor = predictor_of(opened, engine, rounding=rounding)
    writer = TraceWriter(output, opened.manifest.build)
    session = Engine(opened, predictor, watch=writer)
    stop = set(opened.manifest.model.eos)
    with writer.or_nothing():
        generated = tuple(session.generate(tokens, max_tokens, greedy, stop))
    writer.close(tuple(tokens), generated)
    click.echo(output / "trace.json")
