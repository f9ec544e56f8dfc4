"""Where topologies come from: files, the topologies that topoc ships, standard input."""

import sys
from collections.abc import Mapping
from pathlib import Path

from attrs import define, field, frozen

from topoc.dsl import ast
from topoc.dsl.diagnostic import Diagnostic, Place, TopocError, error
from topoc.dsl.parser import parse
from topoc.dsl.plain import Plain
from topoc.dsl.source import Source
from topoc.dsl.suggest import advice

LARGEST = 1_000_000
STDIN = "-"
STDIN_NAME = "<stdin>"


@frozen(eq=False, repr=False)
class Parsed(Plain):
    """One parsed file, the folder that its paths start from, and its syntax errors."""

    file: ast.File
    folder: Path
    stem: str
    findings: tuple[Diagnostic, ...]
    named: Mapping[str, ast.Topology] = field(init=False, eq=False, repr=False)

    @named.default
    def _by_name(self) -> dict[str, ast.Topology]:
        """Its topologies; of two of one name the first."""
        return {one.name.text: one for one in reversed(self.file.topologies)}


@define(eq=False, repr=False)
class Library:
    """Files read so far, each parsed once."""

    _read: dict[Path, Parsed] = field(factory=dict)

    def open(self, path: Path) -> Parsed:
        """Read and parse a file; raises TopocError if it can't be read as text."""
        key = path if str(path) == STDIN else path.resolve()
        if key not in self._read:
            source = read(path)
            file, findings = parse(source)
            self._read[key] = Parsed(file, path.parent, path.stem, findings)
        return self._read[key]


def read(path: Path) -> Source:
    """The text of a file; raises TopocError, by name, for what is no `.topo` text."""
    name = STDIN_NAME if str(path) == STDIN else str(path)
    try:
        data = sys.stdin.buffer.read(LARGEST + 1) if str(path) == STDIN else _bytes(path)
    except OSError as failure:
        reason = (failure.strerror or str(failure)).lower()
        message = f"can't read `{name}`: {reason}"
        raise _refusal(message, name) from failure
    if len(data) > LARGEST:
        message = f"`{name}` is larger than 1 MB, which no topology is"
        raise _refusal(message, name)
    try:
        return Source(name, data.decode("utf-8").replace("\r\n", "\n"))
    except UnicodeDecodeError as failure:
        line = data[: failure.start].count(b"\n") + 1
        message = f"line {line} of `{name}` is not UTF-8"
        raise _refusal(message, name, "syntax.text") from failure


def find(name: str) -> Path:
    """A path that exists: `name` itself, else the shipped topology of that name."""
    path = Path(name)
    if name == STDIN or _is_there(path) or len(path.parts) != 1:
        return path
    known = shipped()
    stem = name.removesuffix(".topo")
    if stem not in known:
        help_ = advice(stem, known, "shipped topologies are")
        message = f"no file and no shipped topology is called `{name}`"
        raise _refusal(message, name, help_=help_)
    return known[stem]


def _is_there(path: Path) -> bool:
    """A name that the system can't even look up, being too long, is no file."""
    try:
        return path.exists()
    except OSError:
        return False


def shipped() -> dict[str, Path]:
    """The topologies that topoc ships, those that devices measured among them, by name."""
    from importlib.resources import files  # half the cost of a start, and seldom needed

    folder = Path(str(files("topoc.topologies")))
    places = ("*.topo", "measured/*.topo")
    return {one.stem: one for place in places for one in sorted(folder.glob(place))}


def _bytes(path: Path) -> bytes:
    """What a file holds; a pipe would be waited for, maybe without end."""
    if path.is_dir():
        message = f"`{path}` is a folder, and a topology is a file"
        way = "name a file in it; `topoc lint` also takes bundles and folders of packages"
        raise _refusal(message, str(path), help_=way)
    if path.exists() and not path.is_file():
        message = f"`{path}` is no file but a pipe or a device"
        raise _refusal(message, str(path), help_="name a file, or `-` for standard input")
    with path.open("rb") as file:
        return file.read(LARGEST + 1)


def _refusal(message: str, name: str, code: str = "name.unknown", help_: str = "") -> TopocError:
    return TopocError(error(code, message, Place(name), help=help_))
