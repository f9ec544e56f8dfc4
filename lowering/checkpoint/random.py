"""Weights out of a seed: made on demand, the same in whatever blocks they are read."""

from collections.abc import Mapping
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from attrs import field, frozen

from topoc.lowering.architecture import Architecture
from topoc.lowering.checkpoint.reader import Entry

if TYPE_CHECKING:
    import torch

PREFIX = "random:"
TILE = 1 << 18  # elements of a tensor that lie in the pool one after another
POOL = 1 << 22  # places where a tile may begin
GAIN_SPREAD = 0.1
SCALAR = ".scalar"  # a layer's factor, which is no gain


@frozen
class Random:
    """A checkpoint that is nowhere; it has tensors once an architecture has been given.

    Gains and the numbers that layers are multiplied by come out near one, so that a stream neither
    fades nor grows.
    """

    seed: int
    entries: Mapping[str, Entry] = field(factory=dict, repr=False)
    offset: float = 0.0  # of the norms' gains, which come out near one

    @property
    def path(self) -> Path:
        """Its name, for messages."""
        return Path(f"{PREFIX}{self.seed}")

    @property
    def files(self) -> tuple[Path, ...]:
        """None."""
        return ()

    def fitted(self, architecture: Architecture) -> "Random":
        """The checkpoint with the tensors that an architecture needs, by their roles."""
        entries = {
            one.role: Entry(name=one.role, shape=one.shape, dtype="F32")
            for one in architecture.tensors
        }
        return Random(self.seed, entries, architecture.norms.offset)

    def rows(self, name: str, start: int, stop: int) -> "torch.Tensor":
        """Rows of the slowest axis as float32.

        Those of matrices have variance 1 / fan-in, so that activations keep their size.
        """
        import torch

        shape = self.entries[name].shape
        width = shape[1] if len(shape) > 1 else 1
        at, end = start * width, stop * width
        drawn = np.empty(end - at, np.float32)
        while at < end:
            part = drawn[at - end :][: TILE - at % TILE]
            part[:] = self._tile(f"{name}/{at // TILE}")[at % TILE :][: len(part)]
            at += len(part)
        if len(shape) == 1:
            drawn *= np.float32(GAIN_SPREAD)
            drawn += np.float32(1 if name.endswith(SCALAR) else 1 - self.offset)
            return torch.from_numpy(drawn)
        drawn *= np.float32(width**-0.5)
        return torch.from_numpy(drawn.reshape(-1, width))

    def _tile(self, name: str) -> np.ndarray:
        """Draws of the pool, from a place that the name of the tile decides on."""
        digest = sha256(f"{self.seed}/{name}".encode()).digest()
        place = int.from_bytes(digest[:8], "little") % POOL
        return _pool(self.seed)[place : place + TILE]


@cache
def _pool(seed: int) -> np.ndarray:
    """Draws of a normal distribution: to copy them takes a thirtieth of the time of new ones."""
    stream = np.random.Generator(np.random.SFC64(seed))
    return stream.standard_normal(POOL + TILE, dtype=np.float32)
