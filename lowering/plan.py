"""What a topology becomes: packages of programs, the buffers a host keeps, the steps it makes."""

from math import prod
from typing import TYPE_CHECKING, Literal

from attrs import frozen

from topoc.dsl.model import Chunk, Function, Topology
from topoc.dsl.plain import Plain
from topoc.lowering import manifest, passes
from topoc.lowering.architecture import Architecture
from topoc.lowering.build import build
from topoc.lowering.build.caches import caches_of
from topoc.lowering.ir import DType, Program

if TYPE_CHECKING:
    from topoc.lowering.rescale import Scales


@frozen(kw_only=True, eq=False, repr=False)
class PackagePlan(Plain):
    """One package: a chunk, and one program for each function that runs it."""

    name: str
    chunk: Chunk
    programs: tuple[Program, ...]

    @property
    def path(self) -> str:
        """Its folder in the bundle."""
        return f"{self.name}.mlpackage"

    @property
    def loaded_bytes(self) -> int:
        """The weights as a device holds them, however many functions share them."""
        weights = {w.key: w.type.bytes for program in self.programs for w in program.weights}
        return sum(weights.values())

    @property
    def parameters(self) -> int:
        """The elements of its weights."""
        shapes = {w.role: w.type.shape for program in self.programs for w in program.weights}
        return sum(map(prod, shapes.values()))


@frozen(kw_only=True, eq=False, repr=False)
class Plan(Plain):
    """Everything that is known before a weight is read, but for the residual scales."""

    topology: Topology
    architecture: Architecture
    dtype: DType
    packages: tuple[PackagePlan, ...]
    buffers: tuple[manifest.Buffer, ...]
    functions: tuple[manifest.Function, ...]

    @property
    def rope_names(self) -> tuple[str, ...]:
        """The tables of cosines and sines that some input is fed from."""
        names = [
            one.source.name
            for package in self.packages
            for program in package.programs
            for one in program.inputs
            if one.source.kind == "rope_cos" and one.source.name is not None
        ]
        return tuple(sorted(set(names)))

    @property
    def host_embeds(self) -> bool:
        """Whether the host looks up embeddings."""
        sources = (one.source for p in self.packages for q in p.programs for one in q.inputs)
        return any(source.kind == "embedding" for source in sources)


def plan(
    topology: Topology,
    architecture: Architecture,
    *,
    dtype: DType = DType.FP16,
    scales: "Scales | None" = None,
) -> Plan:
    """Build every program, run the passes over it, and lay out what the host does."""
    pipeline = passes.pipeline(scales)
    built: dict[Chunk, list[Program]] = {}
    functions = []
    for function in topology.functions:
        steps = []
        for chunk in topology.chunks_of(function):
            raw = build(topology, architecture, function, chunk, dtype=dtype)
            program = passes.run(pipeline, raw)
            built.setdefault(chunk, []).append(program)
            steps.append(_step(topology, function, chunk, program))
        functions.append(_function(function, steps))
    return Plan(
        topology=topology,
        architecture=architecture,
        dtype=dtype,
        packages=tuple(
            PackagePlan(name=chunk.name, chunk=chunk, programs=tuple(programs))
            for chunk, programs in built.items()
        ),
        buffers=_buffers(topology, architecture, tuple(built), dtype),
        functions=tuple(functions),
    )


def _function(function: Function, steps: list[manifest.Step]) -> manifest.Function:
    return manifest.Function(
        name=function.name, role=function.role, tokens=function.tokens, steps=tuple(steps)
    )


def _step(topology: Topology, function: Function, chunk: Chunk, program: Program) -> manifest.Step:
    return manifest.Step(
        package=f"{chunk.name}.mlpackage",
        function=program.name,
        unit=chunk.unit or function.unit or topology.target.unit,
        inputs=tuple(
            manifest.Input(
                feature=one.value.name,
                shape=one.value.shape,
                dtype=one.value.type.dtype.value,
                source=one.source,
            )
            for one in program.inputs
        ),
        outputs=tuple(
            manifest.Output(
                feature=one.value.name,
                shape=one.value.shape,
                dtype=one.value.type.dtype.value,
                sink=one.sink,
            )
            for one in program.outputs
        ),
    )


def _buffers(
    topology: Topology, architecture: Architecture, chunks: tuple[Chunk, ...], dtype: DType
) -> tuple[manifest.Buffer, ...]:
    both: tuple[Literal["k"], Literal["v"]] = ("k", "v")
    return tuple(
        cache.buffer(chunk.name, holds, dtype)
        for chunk in chunks
        for cache in caches_of(topology, architecture, chunk)
        for holds in both
    )
