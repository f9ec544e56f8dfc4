"""A path to a topology: read, parse, extend, resolve, check."""

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from attrs import define, evolve, field, frozen

from topoc.dsl import ast
from topoc.dsl.diagnostic import Diagnostic, Label, TopocError, error
from topoc.dsl.format import flatten
from topoc.dsl.library import Library, Parsed, find
from topoc.dsl.lint.engine import Report, Subjects, examine
from topoc.dsl.model import Topology
from topoc.dsl.neighbours import given_up
from topoc.dsl.plain import Plain
from topoc.dsl.resolve import Given, Table, resolve
from topoc.dsl.resolve.chain import chain
from topoc.dsl.resolve.settings import report_duplicates
from topoc.dsl.resolve.verdict import verdict
from topoc.dsl.source import Span
from topoc.dsl.suggest import advice

# Findings that a statement lost to a syntax error may cause; they wait until it parses.
_FOLLOWS = {
    *("name.unknown", "model.missing", "context.missing", "param.unknown", "param.unused"),
    *("chunk.missing", "chunk.gap", "chunk.no-head", "chunk.order", "rule.dead", "allow.unused"),
    *("function.unknown", "expect.breach", "ledger.incomplete-verdict", "features.cannot-express"),
}


@frozen(eq=False, repr=False)
class Loaded(Plain):
    """One topology of a file, if it could be resolved, and all that was found in it."""

    topology: Topology | None
    findings: tuple[Diagnostic, ...]
    report: Report | None = None  # of the rules, where they could be asked


Look = Callable[[Subjects], Report]


@define(eq=False, repr=False)
class Loader:
    """Loads topologies with the same parameters, model and layer reader."""

    given: Given
    library: Library = field(factory=Library)
    look: Look = examine  # how the rules are run

    def one(self, path: str, name: str | None) -> Loaded:
        """One topology of a file: the named one, or the one that the file is about."""
        parsed = self.library.open(find(path))
        topology = _pick(parsed, path, name)
        findings = list(parsed.findings)
        if isinstance(topology, Diagnostic):
            findings += [] if parsed.findings else [topology]
            return Loaded(None, tuple(findings))
        return self._load(parsed, topology, findings)

    def all(self, path: str) -> Iterator[Loaded]:
        """Every topology of a file; the first comes with what is wrong with the file itself."""
        parsed = self.library.open(find(path))
        yield Loaded(None, (*parsed.findings, *_whole(parsed)))
        for topology in parsed.file.topologies:
            yield self._load(parsed, topology, [])

    def _load(self, parsed: Parsed, written: ast.Topology, findings: list[Diagnostic]) -> Loaded:
        found: list[Diagnostic] = []
        links = chain(parsed, written, self.library, found)
        topology = None if links is None else resolve(links, self.given, found)
        report = None
        if topology is not None:
            flat = flatten(topology, str(topology.layers.config))
            report = self.look(self._subjects(topology, flat))
            found += report.findings
            topology = evolve(topology, flat=flat)
        if parsed.findings:
            found = [one for one in found if one.code not in _FOLLOWS]
            topology = None
        return Loaded(topology, (*findings, *found), report)

    def _subjects(self, topology: Topology, flat: str) -> Subjects:
        def near() -> Iterator[Topology]:
            return given_up(topology, flat, self.library, self.given)

        return Subjects(topology=topology, given_up=near)


def load(
    path: str | Path,
    *,
    name: str | None = None,
    define: Mapping[str, float] | None = None,
    model: Path | None = None,
    layers: Table | None = None,
) -> tuple[Topology | None, tuple[Diagnostic, ...]]:
    """The topology in a file, or of a shipped name, and every finding.

    The topology is None when it could not be resolved. It may come with errors of coherence or
    placement among the findings: whoever compiles it stops at those. Raises TopocError if `path`
    can't be read.
    """
    loaded = Loader(Given(define or {}, model, layers)).one(str(path), name)
    return loaded.topology, loaded.findings


def _pick(parsed: Parsed, path: str, name: str | None) -> ast.Topology | Diagnostic:
    """The topology that is meant, or why there is none."""
    known = parsed.file.topologies
    wanted = [one for one in known if one.name.text == (name or parsed.stem)]
    if wanted:
        return wanted[0]
    names = [one.name.text for one in known]
    whole = Span(parsed.file.span.source, 0, 0)
    if name is not None:
        message = f"`{path}` holds no topology `{name}`"
        return error("name.unknown", message, whole, help=advice(name, names, "it holds"))
    if len(known) == 1:
        return known[0]
    message = f"`{path}` holds {len(known) or 'no'} topologies, and none is called like the file"
    help_ = "choose one with --topology" if known else "add a topology"
    return error("name.ambiguous" if known else "name.unknown", message, whole, help=help_)


def _whole(parsed: Parsed) -> Iterator[Diagnostic]:
    """What is wrong with a file as a whole, and with its experiments."""
    seen: dict[str, ast.Word] = {}
    for item in parsed.file.items:
        if item.name.text in seen:
            message = f"`{item.name}` is defined twice in this file"
            first = Label(seen[item.name.text].span, "the first")
            yield error("name.duplicate", message, item.name.span, related=(first,))
        seen.setdefault(item.name.text, item.name)
    for item in parsed.file.items:
        if isinstance(item, ast.Experiment):
            yield from _experiment(item)


def _experiment(item: ast.Experiment) -> list[Diagnostic]:
    """An experiment is a record: it has words, a status and figures, and no graph."""
    findings: list[Diagnostic] = []
    report_duplicates(item, findings)
    for one in item.statements:
        if isinstance(one, ast.Status):
            verdict(one, findings.append)
        elif not isinstance(one, ast.Doc | ast.Measured):
            word = one.span.text.split(maxsplit=1)[0]
            message = f"an experiment has no `{word}`"
            help_ = "it holds doc, status and measured; a graph is a topology"
            findings.append(error("syntax.statement", message, one.span, help=help_))
    return findings


__all__ = ["Loaded", "Loader", "TopocError", "load"]
