"""Matrices of a checkpoint on their way into packages: compressed once, and kept for all builds."""

from collections.abc import Mapping
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import numpy as np
from attrs import define, evolve, field, frozen
from numpy.typing import NDArray

from topoc.lowering.checkpoint.weights import Weights
from topoc.lowering.compress.cache import Cache, key
from topoc.lowering.compress.histogram import Floats
from topoc.lowering.compress.importance import Importance
from topoc.lowering.compress.method import FEEDBACK_BITS
from topoc.lowering.compress.parts import Compressed, Damage
from topoc.lowering.compress.recipe import Palettize, Recipe
from topoc.lowering.compress.source import Held, Source, content, spans
from topoc.lowering.ir import Weight
from topoc.lowering.kept import name_of
from topoc.lowering.stored import scaled
from topoc.lowering.threads import one_thread
from topoc.lowering.version import VERSION

if TYPE_CHECKING:
    import torch

HELD = 1 << 25
"""Weights of a matrix that is read once and held in fp16, for it is looked at twice."""


@frozen
class Matrix:
    """A weight as a source: its rows are those that an uncompressed package would hold."""

    weights: Weights = field(repr=False)
    weight: Weight

    @property
    def name(self) -> str:
        """What the checkpoint calls it."""
        return self.weights.names[self.weight.role]

    @property
    def shape(self) -> tuple[int, ...]:
        """Output and input channels."""
        return self.weight.type.shape

    def rows(self, start: int, stop: int) -> "torch.Tensor":
        """Some rows with the weight's offset and factor, in float32."""
        first = self.weight.first or 0
        return scaled(self.weights.rows(self.weight.role, first + start, first + stop), self.weight)


class Inputs(Protocol):
    """What a calibration text told of the inputs of matrices, by the matrix's role."""

    def importance(self, role: str) -> Importance | None:
        """How much the columns of a weight count."""

    def judged(self, role: str) -> Floats | None:
        """E[x²] on text that was not calibrated on: (columns)."""

    def products(self, role: str) -> list[NDArray[np.float32]] | None:
        """E[x xᵀ] of runs of inputs, for error feedback."""

    def judging_products(self, role: str) -> list[NDArray[np.float32]] | None:
        """The same on text that was not calibrated on."""

    def key(self, role: str) -> str:
        """What tells these products from others."""


@frozen
class Fact:
    """What is told of a compressed weight when it is in the cache."""

    bytes: int
    damage: Damage | None
    judged: bool  # the damage of the output is known from text that was kept back


@define
class Compressor:
    """Makes compressed weights, or takes them from the cache.

    A weight is known by its numbers. Its hash is noted under what decides on them, so that it need
    not be read to be found: the hash of the checkpoint, the tensor's name in it, what is done to
    each element, and the version that reads it.
    """

    weights: Weights
    recipes: Mapping[str, Recipe]  # by role
    checkpoint: str  # hash of the files
    cache: Cache
    pad_groups: bool = False
    inputs: Inputs | None = None
    made: list[str] = field(factory=list)  # keys of weights that were not in the cache
    facts: dict[str, Fact] = field(factory=dict)  # of all weights that it gave, by key
    _source: tuple[Weight, Source] | None = None  # the last one: its hash may have been taken

    def get(self, weight: Weight) -> Compressed:
        """The constants of a weight."""
        how, name = self.recipes[weight.role], self.key(weight)
        found = self.cache.get(name, how)
        if found is None:
            self.made.append(weight.key)
            found = self._make(weight, how)
            self.cache.put(name, found, weight.key)
        inputs = self.inputs
        judged = inputs is not None and inputs.judged(weight.role) is not None
        self.facts[weight.key] = Fact(found.bytes, found.damage, judged)
        return found

    def has(self, weight: Weight) -> bool:
        """Whether the cache has it, as far as can be told without reading it."""
        return self.cache.fact(self._noted(weight)) is not None and self.cache.has(self.key(weight))

    def key(self, weight: Weight) -> str:
        """What the cache calls it."""
        known, inputs = self._content(weight), self.inputs
        if inputs is None:
            return key(known, self.recipes[weight.role])
        judged = inputs.judged(weight.role)
        seen = "" if judged is None else sha256(judged.tobytes()).hexdigest()
        more = f"{inputs.key(weight.role)} {seen}"
        return key(known, self.recipes[weight.role], inputs.importance(weight.role), more)

    def _noted(self, weight: Weight) -> str:
        """What the hash of a weight's numbers is noted under."""
        names, offsets = self.weights.names, self.weights.offsets
        told = (names[weight.role], offsets[weight.role], weight.key, weight.type.shape)
        return name_of(VERSION, self.checkpoint, *told)

    def _content(self, weight: Weight) -> str:
        """The hash of a weight's numbers."""
        noted = self._noted(weight)
        known: str | None = self.cache.fact(noted)
        if known is None:
            with one_thread():
                known = content(self._read(weight))
            self.cache.note(noted, known, weight.key)
        return known

    def _read(self, weight: Weight) -> Source:
        """The numbers of a weight, in memory unless there are too many."""
        if self._source is None or self._source[0] != weight:
            source: Source = Matrix(self.weights, weight)
            rows, columns = source.shape
            if rows * columns <= HELD:
                source = Held(source.name, _held(source))
            self._source = weight, source
        return self._source[1]

    @one_thread()
    def _make(self, weight: Weight, how: Recipe) -> Compressed:
        from topoc.lowering.compress.compress import compress
        from topoc.lowering.compress.feedback import fed_back
        from topoc.lowering.compress.measure import damage

        source, role, inputs = self._read(weight), weight.role, self.inputs
        counted = None if inputs is None else inputs.importance(role)
        made = compress(source, how, counted, pad_groups=self.pad_groups)
        if inputs is None:
            return evolve(made, damage=damage(source, made))
        products = inputs.products(role)
        if products is not None and isinstance(how, Palettize) and how.bits <= FEEDBACK_BITS:
            made = fed_back(source, made, products)
        lost = damage(source, made, inputs.judged(role), inputs.judging_products(role))
        return evolve(made, damage=lost)


def _held(source: Source) -> "torch.Tensor":
    """All rows in fp16; infinities among them are named by who compresses them."""
    import torch

    rows, columns = source.shape
    whole = torch.empty(rows, columns, dtype=torch.float16)
    for start, stop in spans(0, rows, columns):
        whole[start:stop] = source.rows(start, stop)
    return whole


@frozen
class Settings:
    """What a process needs to make the same weights as another."""

    recipes: Mapping[str, Recipe]
    checkpoint: str
    root: Path
    limit: int
    pad_groups: bool
    inputs: Inputs | None = field(repr=False)

    @classmethod
    def of(cls, one: Compressor) -> "Settings":
        """Those of a compressor."""
        cache = one.cache
        return cls(one.recipes, one.checkpoint, cache.root, cache.limit, one.pad_groups, one.inputs)

    def compressor(self, weights: Weights) -> Compressor:
        """A compressor that makes and names weights alike."""
        cache = Cache(self.root, self.limit)
        return Compressor(
            weights, self.recipes, self.checkpoint, cache, self.pad_groups, self.inputs
        )
