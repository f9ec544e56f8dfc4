"""A tree and its bases to a `Topology`: what was written becomes what was meant."""

from collections.abc import Callable, Mapping
from importlib import import_module
from pathlib import Path
from typing import TypeAlias, cast

from attrs import evolve, frozen

from topoc.dsl import ast
from topoc.dsl.diagnostic import Diagnostic, Severity, TopocError, error
from topoc.dsl.model import COREML_LLM, Allowance, Block, Layers, Topology
from topoc.dsl.plain import Plain
from topoc.dsl.resolve.attention import attentions
from topoc.dsl.resolve.budgets import budgets
from topoc.dsl.resolve.chain import Link
from topoc.dsl.resolve.features import check_features
from topoc.dsl.resolve.functions import functions
from topoc.dsl.resolve.kv import caches
from topoc.dsl.resolve.params import parameters, report_unused
from topoc.dsl.resolve.quantize import recipes
from topoc.dsl.resolve.scope import Scope
from topoc.dsl.resolve.settings import (
    context,
    features,
    model_path,
    report_duplicates,
    taps,
    target,
)
from topoc.dsl.resolve.verdict import measurement, verdict

Table: TypeAlias = Callable[[Path], Layers]

# Stands in until the checkpoint's table is read.
_NO_LAYERS = Layers(family="", config=Path(), layers=(), hidden=0, vocabulary=0, positions=0)
_READER = "topoc.lowering.architecture:layers"


@frozen(eq=False, repr=False)
class Given(Plain):
    """What a topology is resolved with, beside its text."""

    define: Mapping[str, float]
    model: Path | None  # a config.json in place of the one that the text names
    layers: Table | None  # the reader of layer tables; the compiler's without one


def resolve(links: tuple[Link, ...], given: Given, findings: list[Diagnostic]) -> Topology | None:
    """The topology at the end of a chain, or None; everything wrong with it is in `findings`."""
    before = len(findings)
    report_duplicates(links[-1].topology, findings)
    params = parameters(links, given.define, findings)
    head = _head(links, findings)
    table = _layers(links, given, findings)
    if table is None:
        return None
    scope = Scope(params, table, findings)
    topology = _graph(scope, links, evolve(head, layers=table))
    check_features(scope, links, topology)
    report_unused(scope, links)
    sound = all(one.severity is not Severity.ERROR for one in findings[before:])
    return topology if sound else None


def _head(links: tuple[Link, ...], findings: list[Diagnostic]) -> Topology:
    """What can be told without the checkpoint."""
    own = links[-1]
    judged = verdict(next(iter(own.of(ast.Status)), None), findings.append)
    doc = next(iter(own.of(ast.Doc)), None)
    return Topology(
        name=own.topology.name.text,
        doc=doc.text.text if doc else "",
        status=judged.state,
        verdict=judged,
        layers=_NO_LAYERS,
        target=target(links, findings),
        context=0,
        features=features(links, findings),
        blocks=(),
        chunks=(),
        functions=(),
        recipes=(),
        allowances=_allowances(own),
        span=own.topology.name.span,
    )


def _graph(scope: Scope, links: tuple[Link, ...], head: Topology) -> Topology:
    """What each layer runs and keeps, and how the layers are cut up and driven."""
    size = context(scope, links) or scope.layers.positions
    runs = attentions(scope, links, size)
    kept = caches(scope, links, runs, context=size, padded=head.features == COREML_LLM)
    main, offered = functions(scope, links, size, kept)
    chunks = [*main, *(chunk for function in offered for chunk in function.chunks or ())]
    names = [chunk.name for chunk in chunks]
    calls = [function.name for function in offered]
    figures = links[-1].of(ast.Measured)
    return evolve(
        head,
        context=size,
        blocks=tuple(
            Block(index=at, attention=run, kv=kv)
            for at, (run, kv) in enumerate(zip(runs, kept, strict=True))
        ),
        chunks=main,
        functions=offered,
        recipes=recipes(scope, links),
        taps=taps(scope, links),
        budgets=budgets(scope, links),
        measurements=tuple(
            sorted(
                (measurement(one, names, calls, scope.report) for one in figures),
                key=lambda one: (one.date, one.notes, one.figures),
            )
        ),
    )


def _allowances(link: Link) -> tuple[Allowance, ...]:
    """What is allowed, in an order that does not depend on that of the lines."""
    found = (
        Allowance(
            code=one.code.text,
            chunk=one.chunk.text if one.chunk else None,
            reason=one.reason.text,
            span=one.code.span,
        )
        for one in link.of(ast.Allow)
    )
    return tuple(sorted(found, key=lambda one: (one.code, one.chunk or "", one.reason)))


def _layers(links: tuple[Link, ...], given: Given, findings: list[Diagnostic]) -> Layers | None:
    """The checkpoint's layer table, or None after an error was reported."""
    stated = model_path(links)
    name = links[-1].topology.name
    if given.model is None and stated is None:
        help_ = 'add `model "….json"`, the path of a Hugging Face config.json, or give --model'
        findings.append(error("model.missing", f"`{name}` names no model", name.span, help=help_))
        return None
    path = given.model or (stated[0] if stated else Path())
    span = stated[1].path.span if stated and given.model is None else name.span
    try:
        return given.layers(path) if given.layers else read_layers(path)
    except OSError as failure:
        reason = (failure.strerror or str(failure)).lower()
        message = f"can't read `{path}`: {reason}"
        help_ = "the path starts from the file that states it"
        findings.append(error("model.unreadable", message, span, help=help_))
    except TopocError as failure:
        findings.extend(failure.findings)
    return None


def read_layers(config: Path) -> Layers:
    """The layer table of a `config.json`. Raises TopocError, or OSError where nothing opens."""
    return _reader()(config)


def _reader() -> Table:
    """The compiler's reader, found by name when it is called: the language imports no compiler."""
    module, _, function = _READER.partition(":")
    return cast("Table", getattr(import_module(module), function))


__all__ = ["Given", "Table", "read_layers", "resolve"]
