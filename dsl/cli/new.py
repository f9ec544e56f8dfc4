"""`topoc new`: a first topology for a checkpoint."""

import os
from pathlib import Path

import click

from topoc.dsl.cli import view
from topoc.dsl.diagnostic import Place, TopocError, error
from topoc.dsl.draft import draft, name_for
from topoc.dsl.library import STDIN
from topoc.dsl.load import load
from topoc.dsl.model import Layers
from topoc.dsl.resolve import read_layers

_OF_ANY_HEAD = ("op.argmax-tail", "numeric.wide-vocabulary-tie")  # notes on what a draft ends in


@click.command("new")
@click.option(
    "--from",
    "config",
    type=click.Path(path_type=Path),
    required=True,
    metavar="CONFIG.json",
    help="Take the layers from this config.json, or from the one in this folder.",
)
@click.option(
    "-o",
    "output",
    type=click.Path(path_type=Path),
    help="Write there; `-` prints. By default, NAME.topo in this folder.",
)
@click.option(
    "--chunks",
    type=click.IntRange(min=1),
    help="Cut into so many chunks. By default, as few as hold 8 layers at most.",
)
def command(config: Path, output: Path | None, chunks: int | None) -> None:
    """Write a first topology for a checkpoint: an even split, and defaults for the rest."""
    layers = _read(config)
    if chunks is not None and chunks > len(layers.layers):
        message = f"{chunks} chunks are more than the {len(layers.layers)} layers of the model"
        raise TopocError(error("value.range", message, Place("--chunks"), help="ask for fewer"))
    name = name_for(layers.config, layers.family)
    path = output or Path(f"{name}.topo")
    folder = Path() if str(path) == STDIN else path.parent
    text = draft(layers, name=name, model=_from(layers.config, folder), chunks=chunks)
    if str(path) == STDIN:
        view.result(text.rstrip("\n"))
        return
    _write(path, text)
    _, findings = load(path)
    view.problems([one for one in findings if one.code not in _OF_ANY_HEAD])
    view.progress(f"wrote {path}\nnext: topoc plan {path}")


def _read(config: Path) -> Layers:
    """The checkpoint's layers."""
    try:
        return read_layers(config)
    except OSError as failure:
        reason = (failure.strerror or str(failure)).lower()
        message = f"can't read `{config}`: {reason}"
        help_ = "name a Hugging Face config.json, or the folder it is in"
        found = error("model.unreadable", message, Place(str(config)), help=help_)
        raise TopocError(found) from failure


def _from(config: Path, folder: Path) -> str:
    """The path of the config, as a file in this folder names it."""
    return Path(os.path.relpath(config, folder)).as_posix()


def _write(path: Path, text: str) -> None:
    """Write a file that is not there yet."""
    try:
        with path.open("x", encoding="utf-8", newline="\n") as file:
            file.write(text)
    except FileExistsError as failure:
        message, help_ = f"`{path}` is there already", "give another file with -o"
        found = error("name.duplicate", message, Place(str(path)), help=help_)
        raise TopocError(found) from failure
    except OSError as failure:
        message = f"can't write `{path}`: {(failure.strerror or str(failure)).lower()}"
        raise TopocError(error("name.unknown", message, Place(str(path)))) from failure
