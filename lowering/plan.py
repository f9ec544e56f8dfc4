"""What a topology becomes: packages of programs, the buffers a host keeps, the steps it makes."""

from collections.abc import Iterator, Mapping
from functools import lru_cache
from math import prod

from attrs import evolve, field, frozen

from topoc.dsl.model import Chunk, Function, Topology, Write
from topoc.dsl.plain import Plain
from topoc.lowering import manifest, passes
from topoc.lowering.architecture import Architecture
from topoc.lowering.build import build
from topoc.lowering.build.handling import tries_drafts
from topoc.lowering.build.layout import Layout, layout_of
from topoc.lowering.compress.layout import constants, size
from topoc.lowering.compress.recipe import Recipe
from topoc.lowering.features import dressed
from topoc.lowering.ir import DType, Program, TensorType, Weight
from topoc.lowering.ops.linear import Linear
from topoc.lowering.ops.norm import RmsNorm
from topoc.lowering.recipes import quantises_activations, recipes_of
from topoc.lowering.rescale import Scales

INLINE = 10
"""Constants of fewer elements stand in the program, not in the weight file."""


@frozen(kw_only=True, eq=False, repr=False)
class PackagePlan(Plain):
    """One package: a chunk, and one program for each function that runs it."""

    name: str
    chunk: Chunk
    programs: tuple[Program, ...]
    recipes: Mapping[str, Recipe] = field(factory=dict)
    """Of the matrices that are compressed, by role."""

    @property
    def path(self) -> str:
        """Its folder in the bundle."""
        return f"{self.name}.mlpackage"

    @property
    def loaded_bytes(self) -> int:
        """The weights decompressed, as a device holds them, however many functions share them."""
        weights = {w.key: w.type.bytes for program in self.programs for w in program.weights}
        return sum(weights.values())

    @property
    def constants(self) -> tuple[int, ...]:
        """The bytes of each record that the weights fill in the package's file."""
        used = {
            (weight, type(binding.op)): None
            for program in self.programs
            for binding in program.bindings
            for weight in binding.op.weights
        }
        found: dict[object, tuple[int, ...]] = {}
        for weight, op in used:
            how = self.recipes.get(weight.role) if op is Linear else None
            repeats = 1 + issubclass(op, RmsNorm)  # a norm's gain stands twice
            sizes = _sizes(weight, repeats) if how is None else _part_sizes(how, weight)
            found[weight.key, repeats, how] = sizes
        return tuple(size for sizes in found.values() for size in sizes)

    @property
    def written_bytes(self) -> int:
        """All of these records' data."""
        return sum(self.constants)

    @property
    def parameters(self) -> int:
        """The elements of its weights."""
        shapes = {w.role: w.type.shape for program in self.programs for w in program.weights}
        return sum(map(prod, shapes.values()))


def _sizes(weight: Weight, repeats: int) -> tuple[int, ...]:
    """A whole weight; one of a few elements stands in the program itself."""
    inline = repeats * prod(weight.type.shape) < INLINE
    return () if inline else (repeats * weight.type.bytes,)


def _part_sizes(how: Recipe, weight: Weight) -> tuple[int, ...]:
    """The parts of a compressed weight, but for those of a few elements."""
    parts = constants(how, weight.type.shape).values()
    return tuple(size(one) for one in parts if prod(one[1]) >= INLINE)


@frozen(kw_only=True, eq=False, repr=False)
class Plan(Plain):
    """Everything that is known before a weight is read, but for the residual scales."""

    topology: Topology
    architecture: Architecture
    dtype: DType
    packages: tuple[PackagePlan, ...]
    buffers: tuple[manifest.Buffer, ...]
    functions: tuple[manifest.Function, ...]
    activations: Mapping[str, float] = field(factory=dict)
    """The scale of what a projection reads, by its weight's role, once a text has told it."""

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
    def host_combines(self) -> bool:
        """Whether the host makes the per-layer vectors."""
        return any(source.kind == "per_layer" for source in self._sources())

    @property
    def host_tables(self) -> tuple[str, ...]:
        """The tables that the host looks rows up in: `embed`, `ple_table`."""
        names = {s.name for s in self._sources() if s.kind == "embedding" and s.name is not None}
        if self.host_combines:
            names |= {"embed", "ple_table"}
        return tuple(sorted(names))

    @property
    def combining(self) -> tuple[Weight, ...]:
        """What the host makes per-layer vectors with: a projection, and the gain of a norm."""
        if not self.host_combines:
            return ()
        channels, width = self.table_shape("ple_table")[1], self.architecture.hidden
        gain = channels // len(self.architecture.layers)
        return (
            Weight("ple.projection", TensorType(self.dtype, (channels, width))),
            Weight("ple.norm", TensorType(self.dtype, (gain,)), self.architecture.norms.offset),
        )

    def table_shape(self, name: str) -> tuple[int, int]:
        """Rows and width of a host table."""
        arch = self.architecture
        if name == "ple_table" and arch.per_layer is not None:
            return arch.per_layer.vocabulary, len(arch.layers) * arch.per_layer.width
        return arch.vocabulary, arch.hidden

    def _sources(self) -> Iterator[manifest.Source]:
        return (one.source for p in self.packages for q in p.programs for one in q.inputs)


def plan(
    topology: Topology,
    architecture: Architecture,
    *,
    dtype: DType = DType.FP16,
    scales: Scales | None = None,
) -> Plan:
    """Build every program, run the passes over it, and lay out what the host does.

    A compile asks several times: for what it asked last it is given the same plan again.
    """
    scales = scales if scales and scales.change else None
    return _planned(_Asked(topology, architecture, dtype, scales))


@frozen
class _Asked:
    """All that decides on a plan."""

    topology: Topology = field(eq=id)  # that of an equal text has other spans
    architecture: Architecture
    dtype: DType
    scales: Scales | None


@lru_cache(maxsize=2)
def _planned(asked: _Asked) -> Plan:
    topology, architecture, dtype = asked.topology, asked.architecture, asked.dtype
    pipeline = passes.pipeline(asked.scales, activations=quantises_activations(topology, dtype))
    layout = layout_of(topology, architecture)
    built: dict[str, PackagePlan] = {}
    functions = []
    for function in topology.functions:
        made = []
        for chunk in topology.chunks_of(function):
            raw = build(topology, architecture, function, chunk, layout=layout, dtype=dtype)
            made.append((chunk, passes.run(pipeline, raw)))
        steps = [
            _step(topology, function, _added(built, function, chunk, program), program)
            for chunk, program in dressed(topology, function, tuple(made))
        ]
        functions.append(_function(topology, layout, function, steps))
    return Plan(
        topology=topology,
        architecture=architecture,
        dtype=dtype,
        packages=_compressed(topology, dtype, tuple(built.values())),
        buffers=tuple(b for cache in layout.caches for b in cache.buffers(dtype)),
        functions=with_copies(tuple(functions)),
    )


def _compressed(
    topology: Topology, dtype: DType, packages: tuple[PackagePlan, ...]
) -> tuple[PackagePlan, ...]:
    """The packages with the recipes of their matrices."""
    return tuple(evolve(one, recipes=recipes_of(topology, one.programs, dtype)) for one in packages)


def _added(
    built: dict[str, PackagePlan], function: Function, chunk: Chunk, program: Program
) -> PackagePlan:
    """The package of a chunk's program, with the program in it."""
    name = package_name(function, chunk)
    before = built[name].programs if name in built else ()
    built[name] = PackagePlan(name=name, chunk=chunk, programs=(*before, program))
    return built[name]


def package_name(function: Function, chunk: Chunk) -> str:
    """The chunk's name, with the function's where it has a package of its own."""
    return f"{chunk.name}.{function.name}" if function.separate else chunk.name


def _function(
    topology: Topology, layout: Layout, function: Function, steps: list[manifest.Step]
) -> manifest.Function:
    chunks = topology.chunks_of(function)
    mine = {layer for chunk in chunks for layer in chunk.layers}
    kept = [m.kv for cache in layout.caches for m in cache.members if m.layer in mine]
    batch = function.write == "graph" and function.tokens > 1
    writes = {kv.write for kv in kept} if batch else set()
    rings = {kv.slots for kv in kept if kv.write is Write.SLICE} if batch else set()
    return manifest.Function(
        name=function.name,
        role=function.role,
        tokens=function.tokens,
        steps=tuple(steps),
        full_only=bool(writes & {Write.SHIFT, Write.SLICE})
        or tries_drafts(topology.features, function),
        unwrapped=tuple(sorted(rings)),
        answers=any(chunk.has("head") for chunk in chunks),
    )


def with_copies(functions: tuple[manifest.Function, ...]) -> tuple[manifest.Function, ...]:
    """The functions, each told which states other packages may have changed last."""
    holders: dict[str, dict[str, None]] = {}
    for function in functions:
        for package, buffer in _states(function):
            holders.setdefault(buffer, {})[package] = None
    return tuple(
        evolve(
            function,
            copies=tuple(
                manifest.Copy(buffer=buffer, package=package, others=others)
                for package, buffer in _states(function)
                for others in [tuple(one for one in holders[buffer] if one != package)]
                if others
            ),
        )
        for function in functions
    )


def _states(function: manifest.Function) -> Iterator[tuple[str, str]]:
    """Each package of a function, with the state buffers that it holds."""
    for step in function.steps:
        for one in step.inputs:
            if one.source.kind == "state" and one.source.name is not None:
                yield step.package, one.source.name


def _step(
    topology: Topology, function: Function, package: PackagePlan, program: Program
) -> manifest.Step:
    return manifest.Step(
        package=package.path,
        function=program.name,
        unit=package.chunk.unit or function.unit or topology.target.unit,
        inputs=tuple(
            manifest.Input(
                feature=one.value.name,
                shape=one.value.shape,
                dtype="fp16" if one.source.kind == "state" else one.value.type.dtype.value,
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
