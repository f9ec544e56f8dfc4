"""A `Topology` as canonical `.topo` text, every default explicit."""

import json
from collections.abc import Hashable, Iterable, Iterator

from topoc.dsl.model import (
    Allowance,
    Attention,
    Budget,
    Chunk,
    Function,
    Kv,
    Measurement,
    Part,
    Recipe,
    Scheme,
    Store,
    Target,
    Topology,
    Verdict,
)
from topoc.dsl.resolve.budgets import MEASURES
from topoc.dsl.resolve.selector import listed


def flatten(topology: Topology, model: str = "config.json") -> str:
    """The topology without base, parameters and defaults; it resolves to the same topology."""
    sections = [
        [*_head(topology, model)],
        _block("attention", _rules(_attention_rules(topology))),
        _block("kv", _rules(_kv_rules(topology))),
        [*_chunks(topology)],
        [f"tap {', '.join(f'L{at}' for at in topology.taps)}"] if topology.taps else [],
        [_functions(topology.functions)],
        _block("quantize", [*_quantize(topology.recipes)]),
        _block("expect", [_budget(budget) for budget in topology.budgets]),
        [_allow(allowance) for allowance in topology.allowances],
        *(_measured(one) for one in topology.measurements),
    ]
    body = "\n\n".join("\n".join(f"  {line}" for line in lines) for lines in sections if lines)
    return f"topology {topology.name} {{\n{body}\n}}\n"


def _text(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def _head(topology: Topology, model: str) -> Iterator[str]:
    if topology.doc:
        yield f"doc {_text(topology.doc)}"
    yield from _status(topology.verdict)
    yield f"model {_text(model)}"
    yield f"target {_target(topology.target)}"
    yield f"features {topology.features}"
    yield f"context {topology.context}"


def _target(target: Target) -> str:
    return " ".join(word for word in (target.unit, target.deployment, target.chip) if word)


def _status(verdict: Verdict) -> Iterator[str]:
    head = f"status {verdict.state}" + (f" on {verdict.date}" if verdict.date else "")
    if not verdict.lines:
        yield head
        return
    yield f"{head} {{"
    for key, said in verdict.lines:
        if key == "figure" and said.startswith("none: "):
            yield f"  figure none {_text(said.removeprefix('none: '))}"
        else:
            yield f"  {key} {_text(said)}"
    yield "}"


def _block(name: str, lines: Iterable[str]) -> list[str]:
    inner = [f"  {line}" for line in lines]
    return [f"{name} {{", *inner, "}"] if inner else []


def _rules(settings: Iterable[str]) -> list[str]:
    """One rule for each setting that layers share, in the order of their first layers."""
    groups: dict[Hashable, list[int]] = {}
    for at, setting in enumerate(settings):
        groups.setdefault(setting, []).append(at)
    return [f"{listed(layers)}: {setting}" for setting, layers in groups.items()]


def _attention_rules(topology: Topology) -> Iterator[str]:
    for block in topology.blocks:
        yield _attention(block.attention)


def _attention(attention: Attention) -> str:
    given = [("tile", attention.tile), ("window", attention.window)]
    arguments = ", ".join(f"{name} = {value}" for name, value in given if value is not None)
    return f"{attention.kind}({arguments})" if arguments else attention.kind


def _kv_rules(topology: Topology) -> Iterator[str]:
    for block in topology.blocks:
        natural = block.attention.window or topology.context
        yield _kv(block.kv, "window" if block.kv.slots == natural else "context")


def _kv(kv: Kv, slots: str) -> str:
    if kv.donor is not None:
        return f"share L{kv.donor}"
    store = f"state({kv.state})" if kv.store is Store.STATE else "io"
    heads = f"(heads = {kv.padded_heads})" if kv.padded_heads else ""
    row = f"padded{heads}" if kv.padded else "tight"
    return f"own, write {kv.write.value}, slots {slots}, store {store}, row {row}"


def _chunks(topology: Topology) -> Iterator[str]:
    for chunk in topology.chunks:
        yield _chunk(chunk, None)
    for function in topology.functions:
        for chunk in function.chunks or ():
            yield _chunk(chunk, function.name)


def _chunk(chunk: Chunk, function: str | None) -> str:
    given = [("unit", chunk.unit), ("function", function)]
    arguments = ", ".join(f"{name} = {value}" for name, value in given if value)
    name = f"{chunk.name}({arguments})" if arguments else chunk.name
    return f"chunk {name} = {' + '.join(_part(part) for part in chunk.parts)}"


def _part(part: Part) -> str:
    if part.kind == "layers":
        return listed(range(part.first, part.last + 1))
    if part.head is None:
        return part.kind
    mode = f"topk = {part.head.k}" if part.head.mode == "topk" else part.head.mode
    split = f", split = {part.head.split}" if part.head.split > 1 else ""
    return f"head({mode}{split})"


def _functions(functions: Iterable[Function]) -> str:
    return f"functions {', '.join(_function(function) for function in functions)}"


def _function(function: Function) -> str:
    given = [] if function.role == "decode" else [f"tokens = {function.tokens}"]
    given += [] if function.role == "decode" else [f"write = {function.write}"]
    given += [f"package = {'separate' if function.separate else 'shared'}"]
    given += [f"unit = {function.unit}"] if function.unit else []
    return f"{function.role}({', '.join(given)})"


def _quantize(recipes: Iterable[Recipe]) -> Iterator[str]:
    """Recipes by role and scheme; layers that share both are one rule."""
    groups: dict[tuple[str, str, bool], list[int]] = {}
    for recipe in recipes:
        schemes = " + ".join(_scheme(scheme) for scheme in recipe.schemes)
        layers = groups.setdefault((recipe.role, schemes, recipe.layer is None), [])
        layers += [] if recipe.layer is None else [recipe.layer]
    merged: dict[tuple[str, tuple[int, ...]], list[str]] = {}
    for (role, schemes, _), layers in groups.items():
        merged.setdefault((schemes, tuple(layers)), []).append(role)
    # A rule without layers also names a role's tensors inside layers, so those come after.
    for (schemes, layers_), roles in sorted(merged.items(), key=lambda item: bool(item[0][1])):
        where = f"{listed(list(layers_))} " if layers_ else ""
        yield f"{where}{', '.join(roles)}: {schemes}"


def _scheme(scheme: Scheme) -> str:
    arguments = ", ".join(f"{name} = {value}" for name, value in scheme.arguments)
    return f"{scheme.name}({arguments})" if arguments else scheme.name


def _budget(budget: Budget) -> str:
    return f"{budget.measure} {budget.relation} {_amount(budget)}"


def _amount(budget: Budget) -> str:
    """The value in the base unit of its measure, without loss."""
    unit = next((one for one in ("B", "ms") if one in MEASURES[budget.measure]), "")
    return f"{_number(budget.value)} {unit}".strip()


def _number(value: float) -> str:
    if value == int(value):
        return str(int(value))
    return f"{value:.17f}".rstrip("0") if float(f"{value:.17f}") == value else f"{value!r}"


def _allow(allowance: Allowance) -> str:
    where = f" in {allowance.chunk}" if allowance.chunk else ""
    return f"allow {allowance.code}{where} because {_text(allowance.reason)}"


def _measured(measurement: Measurement) -> list[str]:
    notes = [f"  {key} {_text(said)}" for key, said in measurement.notes]
    figures = [
        f"  {' '.join(words)} {_number(value)} {unit}".rstrip()
        for words, value, unit in measurement.figures
    ]
    return [f"measured on {measurement.date} {{", *notes, *figures, "}"]
