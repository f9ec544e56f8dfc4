"""`topoc show`: a topology with nothing left to look up."""

import os
from pathlib import Path

import click

from topoc.dsl.cli import options, view
from topoc.dsl.diagnostic import Place, TopocError, error
from topoc.dsl.format import flatten
from topoc.dsl.load import load
from topoc.dsl.model import Topology


@click.command("show")
@click.argument("file", metavar="FILE")
@click.option(
    "-o", "output", type=click.Path(path_type=Path), help="Write there, with `model` to match."
)
@options.topology
@options.define
@options.model
def command(
    file: str,
    output: Path | None,
    name: str | None,
    define: tuple[tuple[str, float], ...],
    model: Path | None,
) -> None:
    """Print FILE flattened: no base, no parameters, every default explicit."""
    topology, findings = load(file, name=name, define=dict(define), model=model)
    view.problems(findings)
    if topology is None:
        raise SystemExit(view.FINDINGS)
    if output is None:
        view.result(topology.flat.rstrip("\n"))
    else:
        _write(topology, output)


def _write(topology: Topology, output: Path) -> None:
    """Write the flattened text, its `model` relative to where it stands."""
    config = os.path.relpath(topology.layers.config, output.parent)
    try:
        output.write_text(flatten(topology, Path(config).as_posix()), "utf-8")
    except OSError as failure:
        message = f"can't write `{output}`: {(failure.strerror or str(failure)).lower()}"
        raise TopocError(error("name.unknown", message, Place(str(output)))) from failure
    view.progress(f"wrote {output}")
