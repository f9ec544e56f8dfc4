"""Weights out of a seed: made on demand, the same in whatever blocks they are read."""

from collections.abc import Mapping
from hashlib import sha256
from pathlib import Path

import numpy as np
import torch
from attrs import field, frozen

from topoc.lowering.architecture import Architecture
from topoc.lowering.checkpoint.reader import Entry

PREFIX = "random:"
TILE = 1 << 18  # elements drawn from one stream
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

    def rows(self, name: str, start: int, stop: int) -> torch.Tensor:
        """Rows of the slowest axis as float32."""
        shape = self.entries[name].shape
        width = shape[1] if len(shape) > 1 else 1
        tall = max(1, TILE // width)
        tiles = range(start // tall, -(-stop // tall))
        made = [self._tile(name, tile, min(tall, shape[0] - tile * tall), width) for tile in tiles]
        whole = np.concatenate(made) if made else np.empty((0, width), np.float32)
        first = start - start // tall * tall
        values = torch.from_numpy(whole[first : first + stop - start])
        return values if len(shape) > 1 else values.reshape(-1)

    def _tile(self, name: str, tile: int, tall: int, width: int) -> np.ndarray:
        """Draws for matrices have variance 1 / fan-in, so that activations keep their size."""
        key = sha256(f"{self.seed}/{name}/{tile}".encode()).digest()
        stream = np.random.Generator(np.random.SFC64(int.from_bytes(key, "little")))
        drawn = stream.standard_normal((tall, width), dtype=np.float32)
        if len(self.entries[name].shape) == 1:
            offset = 0.0 if name.endswith(SCALAR) else self.offset
            return drawn * np.float32(GAIN_SPREAD) + np.float32(1 - offset)
        return drawn * np.float32(width**-0.5)
