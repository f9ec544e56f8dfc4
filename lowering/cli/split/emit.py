"""Splits as `.topo` files that extend the one they came from."""

import os
from collections.abc import Iterator
from pathlib import Path

from topoc.dsl.diagnostic import Place, TopocError, error
from topoc.dsl.library import STDIN, find
from topoc.dsl.lint.engine import lint
from topoc.dsl.model import Topology
from topoc.lowering.cli.milliseconds import milliseconds, spelled
from topoc.lowering.cli.size import size
from topoc.lowering.split import recut
from topoc.lowering.split.space import spelled as cut
from topoc.lowering.split.split import Choice, Search


def emit(search: Search, file: str, folder: Path, settings: tuple[str, ...]) -> Iterator[Path]:
    """Write a file for each split; one that is there already is never replaced."""
    base = _base(search.space.topology, file, folder)
    folder.mkdir(parents=True, exist_ok=True)
    for one in search.choices:
        yield _written(search, one, folder, base, settings)


def settings(
    define: tuple[tuple[str, float], ...], model: Path | None, folder: Path
) -> tuple[str, ...]:
    """What the command line set, as statements of a file in this folder."""
    found = [f"param {name} = {value:g}" for name, value in define]
    if model is not None:
        found.insert(0, f'model "{_relative(model, folder)}"')
    return tuple(found)


def _written(
    search: Search, one: Choice, folder: Path, base: str, settings: tuple[str, ...]
) -> Path:
    topology = search.space.topology
    text = recut.text_of(
        topology,
        one.cuts,
        base=base,
        doc=_doc(search, one),
        allowed=_allowed(topology, one),
        settings=settings,
    )
    path = folder / f"{recut.name_of(topology, one.cuts)}.topo"
    try:
        with path.open("x", encoding="utf-8", newline="\n") as out:
            out.write(text)
    except FileExistsError as failure:
        message, help_ = f"`{path}` is there already", "give another folder, or remove the file"
        found = error("name.duplicate", message, Place(str(path)), help=help_)
        raise TopocError(found) from failure
    return path


def _doc(search: Search, one: Choice) -> str:
    """What the split is, and what was predicted when it was made."""
    kv = f"{size(one.bytes)} of KV cross chunk walls"
    what = f"{search.space.topology.name} cut {cut(one.cuts)}"
    if one.estimate is None or search.space.profile is None:
        return f"{what}: {kv} in a decode step."
    device = search.space.profile.device
    told = f"{spelled(milliseconds(one.estimate))} predicted for a decode step on {device}"
    return f"{what}: {told}; {kv}."


def _allowed(topology: Topology, one: Choice) -> list[tuple[str, str]]:
    """The base's allowances that the split needs too: a file does not inherit them."""
    here = recut.recut(topology, one.cuts)
    unused = {finding.at.at for finding in lint(here) if finding.code == "allow.unused"}
    return [(line.code, line.reason) for line in here.allowances if line.span not in unused]


def _base(topology: Topology, file: str, folder: Path) -> str:
    """What the files extend: the topology that the file is about, by its path from there."""
    path = find(file)
    if file == STDIN or path.stem != topology.name:
        message = f"`{topology.name}` of `{file}` can't be extended from another file"
        help_ = f"put it into a file of its own, `{topology.name}.topo`"
        raise TopocError(error("split.no-base", message, Place(file), help=help_))
    if path.resolve().parent == folder.resolve():
        return topology.name
    return f'"{_relative(path, folder)}"'


def _relative(path: Path, folder: Path) -> str:
    return Path(os.path.relpath(path, folder)).as_posix()
