"""From a plan to what is told of it."""

from typing import TYPE_CHECKING, Literal, cast

from attrs import evolve

from topoc.dsl.measure import Measured, measure
from topoc.dsl.model import Budget
from topoc.lowering import manifest
from topoc.lowering.build.handling import is_kv_value
from topoc.lowering.cli.plan import report
from topoc.lowering.cli.plan.damage import compressed, layers
from topoc.lowering.features.storage import angle_files, row_files
from topoc.lowering.ir import DType, Program, TensorType
from topoc.lowering.package import ALIGNMENT
from topoc.lowering.plan import PackagePlan, Plan

if TYPE_CHECKING:  # a plan without costs loads none of it
    from topoc.lowering.cli.plan.times import Times


def gather(
    plan: Plan, times: "Times | None" = None, made: manifest.Quantization | None = None
) -> report.Report:
    """Everything that is told; milliseconds only where there are times.

    Of a bundle, also what its compression cost.
    """
    topology, target = plan.topology, plan.topology.target
    chunks, tables = [_chunk(plan, one, times) for one in plan.packages], _tables(plan)
    calls = [_call(one, times) for one in plan.functions]
    packages = sum(one["stored_bytes"] for one in chunks)
    return report.Report(
        topology=topology.name,
        doc=topology.doc,
        status=topology.status,
        target=report.Target(unit=target.unit, deployment=target.deployment, chip=target.chip),
        family=plan.architecture.family,
        hidden=plan.architecture.hidden,
        context=topology.context,
        chunks=chunks,
        calls=calls,
        caches=[_cache(one) for one in plan.buffers],
        tables=tables,
        budgets=[_budget(plan, one, chunks, times) for one in topology.budgets],
        costs=times.costs.device if times and any(one["ms"] for one in calls) else None,
        layers=layers(made),
        compressed=compressed(made),
        download_bytes=packages + sum(one["bytes"] for one in tables),
    )


def _chunk(plan: Plan, package: PackagePlan, times: "Times | None") -> report.Chunk:
    steps = (step for one in plan.functions for step in one.steps)
    mine = [step for step in steps if step.package == package.path]
    return report.Chunk(
        name=package.name,
        layers=list(package.chunk.layers),
        parts=[part.kind for part in package.chunk.parts if part.kind != "layers"],
        stored_bytes=stored(package),
        loaded_bytes=package.loaded_bytes,
        functions=[
            _function(step, package, program, times)
            for step, program in zip(mine, package.programs, strict=True)
        ],
    )


def stored(package: PackagePlan) -> int:
    """The bytes of a package's weight file."""
    return ALIGNMENT + sum(map(_record, package.constants))


def _record(size: int) -> int:
    """A record of the weight file: a header and the data, aligned."""
    return ALIGNMENT + size + -size % ALIGNMENT


def _function(
    step: manifest.Step, package: PackagePlan, program: Program, times: "Times | None"
) -> report.Function:
    """With the weights that it reads itself, of those in its package."""
    alone = evolve(package, programs=(program,))
    into, out = kv_bytes(step)
    return report.Function(
        name=step.function,
        unit=step.unit,
        stored_bytes=stored(alone),
        loaded_bytes=alone.loaded_bytes,
        ms=times.chunk(step.function, package.name) if times else None,
        kv_bytes_in=into,
        kv_bytes_out=out,
        inputs=[_feature(one, one.source) for one in step.inputs],
        outputs=[_feature(one, one.sink) for one in step.outputs],
    )


def _feature(
    one: manifest.Input | manifest.Output, port: manifest.Source | manifest.Sink
) -> report.Feature:
    return report.Feature(
        name=one.feature,
        shape=list(one.shape),
        dtype=one.dtype,
        bytes=_bytes(one.dtype, one.shape),
        kind=port.kind,
        of=port.name,
    )


def _bytes(dtype: str, shape: tuple[int, ...]) -> int:
    return TensorType(DType(dtype), shape).bytes


def kv_bytes(step: manifest.Step) -> tuple[int, int]:
    """The bytes of caches that a step reads and hands on, to the host or to a later step."""
    into = [one for one in step.inputs if one.source.kind == "buffer" or _is_kv(one.source)]
    out = [one for one in step.outputs if one.sink.kind in {"buffer", "rows"} or _is_kv(one.sink)]
    return (
        sum(_bytes(one.dtype, one.shape) for one in into),
        sum(_bytes(one.dtype, one.shape) for one in out),
    )


def _is_kv(port: manifest.Source | manifest.Sink) -> bool:
    return port.kind == "value" and port.name is not None and is_kv_value(port.name)


def _call(function: manifest.Function, times: "Times | None") -> report.Call:
    traffic = [kv_bytes(step) for step in function.steps]
    ms = times.call(function.name) if times else None
    return report.Call(
        name=function.name,
        tokens=function.tokens,
        kv_bytes_in=sum(into for into, _ in traffic),
        kv_bytes_out=sum(out for _, out in traffic),
        ms=ms,
        tokens_per_second=round(1000 * function.tokens / ms["ms"], 3) if ms else None,
    )


def _cache(buffer: manifest.Buffer) -> report.Cache:
    return report.Cache(
        id=buffer.id,
        shape=list(buffer.shape),
        dtype=buffer.dtype,
        bytes=_bytes(buffer.dtype, buffer.shape),
        store=buffer.store,
        rows=[_row(one) for one in buffer.rows],
    )


def _row(one: manifest.Row) -> report.Row:
    return report.Row(
        layer=one.layer,
        holds=one.holds,
        heads=one.heads,
        slots=one.slots,
        width=one.width,
        rule=one.rule,
        window=one.window,
    )


def _tables(plan: Plan) -> list[report.Table]:
    """Rows of tokens, what combines them, and rotary angles, as the compiler writes them."""
    found = [_token_table(plan, name) for name in plan.host_tables]
    for weight in plan.combining:
        of, dtype = weight.type, weight.type.dtype.float_name
        found.append(
            report.Table(name=weight.role, shape=list(of.shape), dtype=dtype, bytes=of.bytes)
        )
    for name in plan.rope_names:
        files = angle_files(plan.topology, plan.dtype, name)
        width = plan.architecture.rope(name).width
        shape, size = [2, files.positions, width], files.bytes_of(width)
        found.append(report.Table(name=f"rope {name}", shape=shape, dtype=files.dtype, bytes=size))
    return found


def _token_table(plan: Plan, name: str) -> report.Table:
    """A byte a value and a scale a row where the topology compresses it."""
    rows, width = plan.table_shape(name)
    files = row_files(plan.topology, plan.dtype, name)
    size = files.bytes_of(rows, width)
    return report.Table(name=name, shape=[rows, width], dtype=files.dtype, bytes=size)


def _budget(
    plan: Plan, budget: Budget, chunks: list[report.Chunk], times: "Times | None"
) -> report.Budget:
    found = _measured(plan, budget.measure, chunks, times)
    tightest = min(found, key=lambda one: _headroom(budget, one.value), default=None)
    return report.Budget(
        measure=budget.measure,
        relation=cast("Literal['<', '<=', '>', '>=', '==']", budget.relation),  # the grammar's
        limit=budget.value,
        chunk=tightest.chunk.name if tightest and tightest.chunk else None,
        value=tightest.value if tightest else None,
        headroom=_headroom(budget, tightest.value) if tightest else None,
    )


def _measured(
    plan: Plan, name: str, chunks: list[report.Chunk], times: "Times | None"
) -> tuple[Measured, ...]:
    """What the topology tells of a measure, its plan, or costs; nothing where it takes a device."""
    if name == "ms per step" and times:
        steps = [times.call(one.name) for one in plan.functions if one.role == "decode"]
        return tuple(Measured(one["ms"]) for one in steps if one)
    if name != "disk per chunk":
        return measure(plan.topology, name) or ()
    pairs = zip(chunks, plan.packages, strict=True)
    return tuple(Measured(told["stored_bytes"], package.chunk) for told, package in pairs)


def _headroom(budget: Budget, value: float) -> float:
    """How far a value is from breaking the budget; below zero it breaks it."""
    if budget.relation == "==":
        return -abs(value - budget.value)
    return budget.value - value if budget.relation.startswith("<") else value - budget.value
