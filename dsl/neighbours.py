"""Topologies near by that were given up: beside a file, and among those that topoc ships.

Reading all of them costs more than a lint may take. What the text of a file shows at once decides
whether it is worth resolving: a verdict, no layers of chunks and no words that are not ours too.
"""

import re
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

from topoc.dsl import ast
from topoc.dsl.diagnostic import Diagnostic, TopocError
from topoc.dsl.library import LARGEST, STDIN_NAME, Library
from topoc.dsl.model import Topology
from topoc.dsl.resolve import Given, resolve
from topoc.dsl.resolve.chain import chain
from topoc.dsl.resolve.verdict import FINAL

_STATUS = re.compile(rf"^\s*status\s+({'|'.join(FINAL)})\b", re.MULTILINE)
_ASIDE = re.compile(r'"(?:[^"\\\n]|\\.)*"|#[^\n]*')
_HEAD = re.compile(r"^topology\b", re.MULTILINE)
_CHUNK = re.compile(r"^\s*chunk\s[^=\n]*=(.*(?:\+\s*\n.*)*)", re.MULTILINE)
_LAYERS = re.compile(r"\bL\d+(?:-L?\d+)?\b")
_TELLING = re.compile(
    r"activations:\s*\w+|padded\(heads|\b(?:tap|windowed_full|flash_tiled|state|padded|prune"
    r"|palettize|int4|embed|prefill|verify|draft|exit|shift|blend|append|slice|topk|logits|argmax"
    r"|split)\b"
)


def given_up(topology: Topology, flat: str, library: Library, given: Given) -> Iterator[Topology]:
    """The topologies of other files that carry a verdict and may build the same as this one."""
    name = STDIN_NAME if topology.span is None else topology.span.source.name
    for path in _files(None if name == STDIN_NAME else name):
        if _promising(path, flat):
            yield from _resolved(path, library, given)


def _files(own: str | None) -> Iterator[Path]:
    """The files beside one, and the shipped ones, each once and without itself."""
    folders = [_shipped()] if own is None else [Path(own).parent, _shipped()]
    seen = set() if own is None else {Path(own).resolve()}
    for path in (path for folder in folders for path in sorted(folder.glob("*.topo"))):
        if path.resolve() not in seen:
            seen.add(path.resolve())
            yield path  # by the name that people know its folder by


def _shipped() -> Path:
    """The folder of the shipped topologies; `importlib.resources` would cost half a start."""
    return Path(next(iter(import_module("topoc.topologies").__path__)))


def _promising(path: Path, flat: str) -> bool:
    """Whether a file has a verdict, and nothing in sight that this topology lacks."""
    try:
        fit = path.is_file() and path.stat().st_size <= LARGEST
        raw = path.read_text("utf-8") if fit else ""
    except (OSError, UnicodeDecodeError):
        return False  # whoever lints that file hears of it
    if not _STATUS.search(raw):
        return False
    text = _ASIDE.sub("", raw)
    if len(_HEAD.findall(text)) > 1:
        return True
    ours = _ASIDE.sub("", flat)
    words = set(_TELLING.findall(text)) <= set(_TELLING.findall(ours))
    return words and _cut(text) <= _cut(ours)


def _cut(text: str) -> set[str]:
    """The layers that the chunks of a text name."""
    found = (_LAYERS.findall(parts) for parts in _CHUNK.findall(text))
    return {layers.replace("-L", "-") for some in found for layers in some}


def _resolved(path: Path, library: Library, given: Given) -> Iterator[Topology]:
    """The topologies of a file that carry a verdict and can be resolved."""
    try:
        parsed = library.open(path)
    except TopocError:
        return
    for written in parsed.file.topologies:
        states = [one.state.text for one in written.statements if isinstance(one, ast.Status)]
        if not set(states) & set(FINAL):
            continue
        findings: list[Diagnostic] = []
        links = chain(parsed, written, library, findings)
        plain = Given({}, None, given.layers)
        topology = None if links is None else resolve(links, plain, findings)
        if topology is not None:
            yield topology
