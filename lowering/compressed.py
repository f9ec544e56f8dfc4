"""Matrices of a checkpoint on their way into packages: compressed once, and kept for all builds."""

from collections.abc import Mapping
from hashlib import sha256
from pathlib import Path
from typing import Protocol

import numpy as np
import torch
from attrs import define, evolve, field, frozen
from numpy.typing import NDArray

from topoc.lowering.checkpoint.weights import Weights
from topoc.lowering.compress.cache import Cache, key
from topoc.lowering.compress.compress import compress
from topoc.lowering.compress.feedback import MOST_BITS, fed_back
from topoc.lowering.compress.histogram import Floats
from topoc.lowering.compress.importance import Importance
from topoc.lowering.compress.measure import damage
from topoc.lowering.compress.parts import Compressed, Damage
from topoc.lowering.compress.recipe import Palettize, Recipe
from topoc.lowering.compress.source import Held, Source
from topoc.lowering.ir import Weight
from topoc.lowering.stored import scaled
from topoc.lowering.version import VERSION

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

    def rows(self, start: int, stop: int) -> torch.Tensor:
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
    fresh: bool  # it was not in the cache before


@define
class Compressor:
    """Makes compressed weights, or takes them from the cache.

    What a weight is known by tells its numbers without reading them: the hash of the checkpoint,
    the tensor's name in it, what is done to each element, and the version that reads it.
    """

    weights: Weights
    recipes: Mapping[str, Recipe]  # by role
    checkpoint: str  # hash of the files
    cache: Cache
    pad_groups: bool = False
    inputs: Inputs | None = None
    made: list[str] = field(factory=list)  # keys of weights that were not in the cache

    def get(self, weight: Weight) -> Compressed:
        """The constants of a weight."""
        how, name = self.recipes[weight.role], self.key(weight)
        found = self.cache.get(name, how)
        if found is None:
            self.made.append(weight.key)
            found = self._make(weight, how)
            self.cache.put(name, found, weight.key)
        return found

    def fact(self, weight: Weight) -> Fact:
        """Make sure that a weight is in the cache."""
        before = len(self.made)
        found, inputs = self.get(weight), self.inputs
        judged = inputs is not None and inputs.judged(weight.role) is not None
        return Fact(found.bytes, found.damage, judged, fresh=len(self.made) > before)

    def key(self, weight: Weight) -> str:
        """What the cache calls it."""
        weights, role = self.weights, weight.role
        told = (
            VERSION,
            self.checkpoint,
            weights.names[role],
            weights.offsets[role],
            weight.key,
            weight.type.shape,
            self.pad_groups,
        )
        content = sha256(repr(told).encode()).hexdigest()
        inputs = self.inputs
        if inputs is None:
            return key(content, self.recipes[role])
        judged = inputs.judged(role)
        seen = "" if judged is None else sha256(judged.tobytes()).hexdigest()
        more = f"{inputs.key(role)} {seen}"
        return key(content, self.recipes[role], inputs.importance(role), more)

    def _make(self, weight: Weight, how: Recipe) -> Compressed:
        source: Source = Matrix(self.weights, weight)
        rows, columns = source.shape
        if rows * columns <= HELD:
            source = Held(source.name, _held(source))
        role, inputs = weight.role, self.inputs
        counted = None if inputs is None else inputs.importance(role)
        made = compress(source, how, counted, pad_groups=self.pad_groups)
        if inputs is None:
            return evolve(made, damage=damage(source, made))
        products = inputs.products(role)
        if products is not None and isinstance(how, Palettize) and how.bits <= MOST_BITS:
            made = fed_back(source, made, products)
        lost = damage(source, made, inputs.judged(role), inputs.judging_products(role))
        return evolve(made, damage=lost)


def _held(source: Source) -> torch.Tensor:
    """All rows in fp16; infinities among them are named by who compresses them."""
    rows, columns = source.shape
    tall = max(1, HELD // 8 // columns)
    return torch.cat([source.rows(at, min(at + tall, rows)).half() for at in range(0, rows, tall)])


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
