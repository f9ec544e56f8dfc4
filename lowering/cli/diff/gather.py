"""From two topologies to what is told of their differences."""

from collections.abc import Iterator, Sequence
from typing import Literal, cast

from topoc.dsl import diff
from topoc.dsl.diagnostic import TopocError
from topoc.dsl.measure import decode_chunks
from topoc.dsl.model import Function, Topology
from topoc.lowering.cli.diff import report
from topoc.lowering.cli.milliseconds import difference, milliseconds
from topoc.lowering.cli.plan.gather import stored
from topoc.lowering.cost.features import Features, features
from topoc.lowering.cost.predict import call, change, estimate
from topoc.lowering.cost.profile import Profile, choose
from topoc.lowering.cost.rows import device_of, step_ms
from topoc.lowering.plan import Plan, plan

# (chunk, function, name) → what the feature is, in words, and whether it is an input.
Table = dict[tuple[str, str, str], tuple[str, bool]]


def gather(
    before: Topology, after: Topology, costs: str | None, plans: Sequence[Plan | str]
) -> report.Report:
    """Everything that is told; `plans` are those of both, or why there is none."""
    found = diff.diff(before, after)
    old, new = profile(before, costs), profile(after, costs)
    tables = [_table(one) for one in plans if not isinstance(one, str)]
    told = list(_features(*tables)) if len(tables) == len(plans) else None
    apart = None
    if old is not None and old == new:
        apart = difference(change(old, _decoded(before), _decoded(after)))
    return report.Report(
        before=_side(before, old, plans[0]),
        after=_side(after, new, plans[1]),
        same=not found and not told,
        changes=cast("report.Changes", {k: [_change(c) for c in v] for k, v in _groups(found)}),
        step=apart,
        features=told,
        not_built=list(dict.fromkeys(one for one in plans if isinstance(one, str))),
    )


def _groups(found: diff.Differences) -> list[tuple[str, tuple[diff.Change, ...]]]:
    return list(found.groups().items())


def _change(one: diff.Change) -> report.Change:
    return report.Change(what=one.what, before=one.before, after=one.after)


def profile(topology: Topology, costs: str | None) -> Profile | None:
    """The costs of the target; none for a unit other than the Neural Engine."""
    if costs is None and topology.target.unit != "ane":
        return None
    return choose(costs, topology.target.chip)


def _decode(topology: Topology) -> Function | None:
    return next((one for one in topology.functions if one.role == "decode"), None)


def _decoded(topology: Topology) -> tuple[Features, ...]:
    function = _decode(topology)
    return () if function is None else features(topology, function)


def _side(topology: Topology, profile: Profile | None, plan: Plan | str) -> report.Side:
    """Weights are told as a plan tells them, else as the layer table does."""
    found = _decoded(topology)
    packages = {} if isinstance(plan, str) else {one.name: one for one in plan.packages}
    sizes = {name: (stored(one), one.loaded_bytes) for name, one in packages.items()}
    chunks = [
        report.Chunk(
            name=chunk.name,
            layers=list(chunk.layers),
            stored_bytes=sizes.get(chunk.name, (one.stored, one.loaded))[0],
            loaded_bytes=sizes.get(chunk.name, (one.stored, one.loaded))[1],
            kv_bytes_in=one.kv_in,
            kv_bytes_out=one.kv_out,
            ms=milliseconds(estimate(profile, one)) if profile else None,
        )
        for chunk, one in zip(decode_chunks(topology), found, strict=False)
    ]
    return report.Side(
        topology=topology.name,
        chunks=chunks,
        kv_bytes=sum(one.kv for one in found),
        stored_bytes=sum(one["stored_bytes"] for one in chunks),
        step=milliseconds(call(profile, found)) if profile and found else None,
        measured=list(_measured(topology)),
    )


def _measured(topology: Topology) -> Iterator[str]:
    for block in topology.measurements:
        ms = step_ms(topology, block)
        if ms is not None:
            yield f"{ms:.1f} ms on {device_of(block)}, {block.date}"


def planned(topology: Topology) -> Plan | str:
    """The programs of a topology, or why they can't be built."""
    from topoc.lowering.architecture import read
    from topoc.lowering.refuse import refusals

    refused = dict.fromkeys(one.message for one in refusals(topology))
    if refused:
        return f"{topology.name}: {'; '.join(refused)}"
    try:
        return plan(topology, read(topology.layers.config))
    except (TopocError, OSError) as failure:
        return f"{topology.name}: {failure}"


def _table(made: Plan) -> Table:
    """The features of every program."""
    table: Table = {}
    for function in made.functions:
        for step in function.steps:
            chunk = step.package.removesuffix(".mlpackage")
            for one in step.inputs:
                words = _words(one.shape, one.dtype, one.source.kind, one.source.name)
                table[chunk, function.name, one.feature] = f"input {words}", True
            for two in step.outputs:
                words = _words(two.shape, two.dtype, two.sink.kind, two.sink.name)
                table[chunk, function.name, two.feature] = f"output {words}", False
    return table


def _words(shape: tuple[int, ...], dtype: str, kind: str, of: str | None) -> str:
    return f"{'×'.join(map(str, shape))} {dtype}, {kind}{f' {of}' if of else ''}"


def _features(before: Table, after: Table) -> Iterator[report.Feature]:
    """A host that was written for the one breaks on the other unless only outputs came on top."""
    for key in dict.fromkeys((*before, *after)):
        old, new = before.get(key), after.get(key)
        if old == new:
            continue
        what: Literal["added", "removed", "changed"] = "changed"
        if old is None or new is None:
            what = "added" if old is None else "removed"
        chunk, function, name = key
        yield report.Feature(
            chunk=chunk,
            function=function,
            name=name,
            change=what,
            before=old[0] if old else None,
            after=new[0] if new else None,
            breaks_host=old is not None or (new is not None and new[1]),
        )
