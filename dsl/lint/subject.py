"""What rules look at: a resolved topology or a package, and questions that several rules ask."""

from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING

from attrs import field, frozen

from topoc.dsl.model import (
    Block,
    Chunk,
    Function,
    Head,
    Layer,
    Part,
    Recipe,
    Store,
    Target,
    Topology,
)
from topoc.dsl.plain import Plain
from topoc.dsl.source import Span
from topoc.dsl.targets.profile import Profile
from topoc.dsl.targets.profiles import profile

if TYPE_CHECKING:
    from topoc.dsl.lint.mil import Package

_NEURAL_ENGINE = ("ane", "all")
_PARTS = ("embed", "ple", "head")  # roles outside layers that are parts of chunks


@frozen(eq=False, repr=False)
class ChunkList(Plain):
    """A chunk list and the functions that run it."""

    functions: tuple[Function, ...]
    chunks: tuple[Chunk, ...]

    def place(self, layer: int) -> int | None:
        """The index of the chunk that runs a layer."""
        found = (at for at, chunk in enumerate(self.chunks) if layer in chunk.layers)
        return next(found, None)


GivenUp = Callable[[], Iterable[Topology]]


def nothing() -> tuple[Topology, ...]:
    """No topologies that were given up."""
    return ()


@frozen(eq=False, repr=False)
class Subject(Plain):
    """A topology under lint, and how to come by those near by that were given up."""

    topology: Topology
    given_up: GivenUp = nothing

    @property
    def profile(self) -> Profile:
        """What is known of the chip that the topology is for."""
        return profile(self.topology.target.chip)

    @property
    def owners(self) -> tuple[Block, ...]:
        """The blocks that own a cache."""
        return tuple(block for block in self.topology.blocks if block.kv.donor is None)

    @property
    def sharers(self) -> tuple[tuple[Block, int], ...]:
        """The blocks that read the cache of another layer, and that layer."""
        found = ((block, block.kv.donor) for block in self.topology.blocks)
        return tuple((block, donor) for block, donor in found if donor is not None)

    def held(self, chunk: Chunk) -> tuple[Block, ...]:
        """The blocks of a chunk that keep their cache in a state."""
        kept = (block for block in self.owners if block.index in chunk.layers)
        return tuple(block for block in kept if block.kv.store is Store.STATE)

    def layer(self, index: int) -> Layer:
        """What the checkpoint says of a layer."""
        return self.topology.layers.layers[index]

    def lists(self) -> Iterator[ChunkList]:
        """The main chunk list, and each list that a function has to itself."""
        shared = tuple(one for one in self.topology.functions if one.chunks is None)
        if self.topology.chunks:
            yield ChunkList(shared, self.topology.chunks)
        for function in self.topology.functions:
            if function.chunks is not None:
                yield ChunkList((function,), function.chunks)

    def placed(self) -> Iterator[tuple[Chunk, tuple[Function, ...]]]:
        """The chunks that may run on the Neural Engine, and the functions that they offer."""
        for chunk_list in self.lists():
            for chunk in chunk_list.chunks:
                if self.on_neural_engine(chunk, chunk_list.functions):
                    yield chunk, chunk_list.functions

    def heads(self) -> Iterator[tuple[Chunk, Part, Head]]:
        """The heads of chunks that may run on the Neural Engine."""
        for chunk, _ in self.placed():
            for part in chunk.parts:
                if part.head is not None:
                    yield chunk, part, part.head

    def recipes(self) -> Iterator[Recipe]:
        """The recipes of what runs in chunks that may run on the Neural Engine."""
        chunks = [chunk for chunk, _ in self.placed()]
        layers = {at for chunk in chunks for at in chunk.layers}
        for recipe in self.topology.recipes:
            if recipe.layer is None:
                part = recipe.role if recipe.role in _PARTS else None
                runs = any(part is None or chunk.has(part) for chunk in chunks)
            else:
                runs = recipe.layer in layers
            if runs:
                yield recipe

    def on_neural_engine(self, chunk: Chunk, functions: tuple[Function, ...]) -> bool:
        """Whether some function of a chunk may run on the Neural Engine."""
        units = [chunk.unit or one.unit or self.topology.target.unit for one in functions]
        return any(unit in _NEURAL_ENGINE for unit in units)

    def at(self, block: Block, clause: str = "source") -> Span:
        """Where a KV property was set: its rule, or the layer's chunk, or the topology."""
        return block.kv.at(clause) or self.runs_at(block.index)

    def runs_at(self, layer: int) -> Span:
        """The part of a chunk that runs a layer."""
        for chunk_list in self.lists():
            for chunk in chunk_list.chunks:
                for part in chunk.parts:
                    if part.first <= layer <= part.last and part.span is not None:
                        return part.span
        return self.whole

    @property
    def whole(self) -> Span:
        """The topology's name."""
        if self.topology.span is None:
            message = "a topology that was read from text has a place"
            raise AssertionError(message)
        return self.topology.span


@frozen(eq=False, repr=False)
class Mil(Plain):
    """A package under lint, and the target that it is judged for.

    `chunk` is the chunk of ours that it was built from, so that `allow CODE in CHUNK` finds it;
    None for a package that others made.
    """

    package: "Package"
    target: Target = field(factory=Target)
    chunk: str | None = None

    @property
    def profile(self) -> Profile:
        """What is known of the chip that the package is for."""
        return profile(self.target.chip)

    @property
    def on_neural_engine(self) -> bool:
        """Whether the package may run on the Neural Engine."""
        return self.target.unit in _NEURAL_ENGINE
