"""From a plan to what is told of it."""

from math import prod
from typing import Literal, cast

from topoc.dsl.measure import Measured, measure
from topoc.dsl.model import Budget
from topoc.lowering import manifest
from topoc.lowering.build.handling import is_kv_value
from topoc.lowering.cli.plan import report
from topoc.lowering.cli.plan.damage import compressed, layers
from topoc.lowering.ir import DType, TensorType
from topoc.lowering.package import ALIGNMENT
from topoc.lowering.plan import PackagePlan, Plan

_NPY_HEADER = 128  # bytes, of an array of three axes
_SCALE = 4  # bytes, of one float32


def gather(plan: Plan, made: manifest.Quantization | None = None) -> report.Report:
    """Everything that is told; of a bundle, with what its compression cost."""
    topology, target = plan.topology, plan.topology.target
    chunks, tables = [_chunk(plan, one) for one in plan.packages], _tables(plan)
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
        calls=[_call(one) for one in plan.functions],
        caches=[_cache(one) for one in plan.buffers],
        tables=tables,
        budgets=[_budget(plan, one, chunks) for one in topology.budgets],
        layers=layers(made),
        compressed=compressed(made),
        download_bytes=packages + sum(one["bytes"] for one in tables),
    )


def _chunk(plan: Plan, package: PackagePlan) -> report.Chunk:
    steps = (step for one in plan.functions for step in one.steps)
    return report.Chunk(
        name=package.name,
        layers=list(package.chunk.layers),
        parts=[part.kind for part in package.chunk.parts if part.kind != "layers"],
        stored_bytes=ALIGNMENT + sum(map(_record, package.constants)),
        loaded_bytes=package.loaded_bytes,
        functions=[_function(step) for step in steps if step.package == package.path],
    )


def _record(size: int) -> int:
    """A record of the weight file: a header and the data, aligned."""
    return ALIGNMENT + size + -size % ALIGNMENT


def _function(step: manifest.Step) -> report.Function:
    into, out = kv_bytes(step)
    return report.Function(
        name=step.function,
        unit=step.unit,
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


def _call(function: manifest.Function) -> report.Call:
    traffic = [kv_bytes(step) for step in function.steps]
    return report.Call(
        name=function.name,
        tokens=function.tokens,
        kv_bytes_in=sum(into for into, _ in traffic),
        kv_bytes_out=sum(out for _, out in traffic),
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
        shape = [2, plan.topology.context, plan.architecture.rope(name).width]
        size = _NPY_HEADER + prod(shape) * plan.dtype.bytes
        kind = plan.dtype.float_name
        found.append(report.Table(name=f"rope {name}", shape=shape, dtype=kind, bytes=size))
    return found


def _token_table(plan: Plan, name: str) -> report.Table:
    """A byte a value and a scale a row where the topology compresses it."""
    rows, width = plan.table_shape(name)
    kind: Literal["fp16", "fp32", "int8"] = plan.dtype.float_name
    size = rows * width * plan.dtype.bytes
    if plan.topology.recipe(name) and plan.dtype is not DType.FP32:
        kind, size = "int8", rows * (width + _SCALE)
    return report.Table(name=name, shape=[rows, width], dtype=kind, bytes=size)


def _budget(plan: Plan, budget: Budget, chunks: list[report.Chunk]) -> report.Budget:
    found = _measured(plan, budget.measure, chunks)
    tightest = min(found, key=lambda one: _headroom(budget, one.value), default=None)
    return report.Budget(
        measure=budget.measure,
        relation=cast("Literal['<', '<=', '>', '>=', '==']", budget.relation),  # the grammar's
        limit=budget.value,
        chunk=tightest.chunk.name if tightest and tightest.chunk else None,
        value=tightest.value if tightest else None,
        headroom=_headroom(budget, tightest.value) if tightest else None,
    )


def _measured(plan: Plan, name: str, chunks: list[report.Chunk]) -> tuple[Measured, ...]:
    """What the topology tells of a measure, or its plan; nothing where it takes a device."""
    if name != "disk per chunk":
        return measure(plan.topology, name) or ()
    pairs = zip(chunks, plan.packages, strict=True)
    return tuple(Measured(told["stored_bytes"], package.chunk) for told, package in pairs)


def _headroom(budget: Budget, value: float) -> float:
    """How far a value is from breaking the budget; below zero it breaks it."""
    if budget.relation == "==":
        return -abs(value - budget.value)
    return budget.value - value if budget.relation.startswith("<") else value - budget.value
