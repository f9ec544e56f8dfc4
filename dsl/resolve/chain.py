"""A topology and the bases it extends, the first base first."""

from pathlib import Path
from typing import TypeVar

from attrs import frozen

from topoc.dsl import ast
from topoc.dsl.diagnostic import Diagnostic, Label, TopocError, error
from topoc.dsl.library import Library, Parsed, shipped
from topoc.dsl.plain import Plain
from topoc.dsl.suggest import advice

_TALLEST = 64  # bases of one topology
_MANY = 1000  # topologies of one file

T = TypeVar("T")


@frozen(eq=False, repr=False)
class Link(Plain):
    """One topology of a chain and the folder that its paths start from."""

    topology: ast.Topology
    folder: Path

    def of(self, kind: type[T]) -> tuple[T, ...]:
        """Its statements of one kind."""
        return tuple(one for one in self.topology.statements if isinstance(one, kind))


def chain(
    parsed: Parsed, topology: ast.Topology, library: Library, findings: list[Diagnostic]
) -> tuple[Link, ...] | None:
    """The chain that ends in `topology`, or None when a base can't be had."""
    links = [Link(topology, parsed.folder)]
    while (base := links[0].topology.base) is not None:
        found = _base(parsed, base, library, findings)
        if found is None:
            return None
        parsed, topology = found
        if len(links) > _TALLEST:
            findings.append(_too_tall(links[-1].topology))
            return None
        if any(topology is link.topology for link in links):
            message = f"`{topology.name}` extends itself"
            way = tuple(
                Label(link.topology.name.span, f"`{link.topology.name}` is extended by way of here")
                for link in links[:-1]
            )
            findings.append(error("name.cycle", message, base.span, related=way))
            return None
        links.insert(0, Link(topology, parsed.folder))
    return tuple(links)


def _too_tall(topology: ast.Topology) -> Diagnostic:
    message = f"`{topology.name}` has more than {_TALLEST} bases, one above the other"
    help_ = "extend a base further down"
    return error("value.range", message, topology.name.span, help=help_)


def _base(
    parsed: Parsed, base: ast.Word | ast.Text, library: Library, findings: list[Diagnostic]
) -> tuple[Parsed, ast.Topology] | None:
    """The topology that a base names: in this file, beside it, shipped, or at a path."""
    if isinstance(base, ast.Word) and base.text in parsed.named:
        return parsed, parsed.named[base.text]
    path = parsed.folder / (base.text if isinstance(base, ast.Text) else f"{base.text}.topo")
    if isinstance(base, ast.Word) and not path.is_file():
        path = shipped().get(base.text, path)
    if path.is_file():
        return _from_file(path, base, library, findings)
    message = f"no topology `{base.text}` is in this file, beside it or shipped"
    help_ = advice(base.text, _known(parsed), "known here are")
    if isinstance(base, ast.Text):
        message = f"there is no file `{base.text}`"
        help_ = "the path starts from the folder of this file"
    findings.append(error("name.unknown", message, base.span, help=help_))
    return None


def _known(parsed: Parsed) -> list[str]:
    """The topologies that a file may extend by name; nothing where they are too many to tell."""
    if len(parsed.named) > _MANY:
        return []
    beside = {one.stem for one in parsed.folder.glob("*.topo")}
    return sorted({*parsed.named, *beside, *shipped()})


def _from_file(
    path: Path, base: ast.Word | ast.Text, library: Library, findings: list[Diagnostic]
) -> tuple[Parsed, ast.Topology] | None:
    try:
        parsed = library.open(path)
    except TopocError as failure:
        findings.append(error(failure.findings[0].code, failure.findings[0].message, base.span))
        return None
    if parsed.findings:
        count = len(parsed.findings)
        message = f"`{path.name}` has {count} syntax error{'s' * (count > 1)}"
        first = Label(parsed.findings[0].at.at, parsed.findings[0].message)
        findings.append(error(parsed.findings[0].code, message, base.span, related=(first,)))
        return None
    if path.stem not in parsed.named:
        known = list(parsed.named)
        message = f"`{path.name}` holds no topology `{path.stem}`"
        help_ = advice(path.stem, known, "it holds")
        findings.append(error("name.unknown", message, base.span, help=help_))
        return None
    return parsed, parsed.named[path.stem]
