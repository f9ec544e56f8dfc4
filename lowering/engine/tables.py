"""Host tables, mapped from disk: rows of tokens, angles of positions, per-layer vectors."""

from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

import numpy as np
from attrs import define, field

from topoc.dsl.diagnostic import Place, TopocError, error
from topoc.lowering.bundle.reader import Bundle
from topoc.lowering.engine.positions import Array, Positions
from topoc.lowering.manifest import PerLayer

CODES = {"fp16": "<f2", "fp32": "<f4", "int8": "<i1"}


@define
class HostTables:
    """The tables of a bundle; what is looked up comes in float32."""

    bundle: Bundle
    _rows: dict[str, Array] = field(init=False, repr=False)
    _scales: dict[str, Array] = field(init=False, repr=False)
    _ropes: dict[str, Array] = field(init=False, repr=False)
    _combination: tuple[Array, Array] | None = field(init=False, repr=False)

    def __attrs_post_init__(self) -> None:
        manifest, path = self.bundle.manifest, self.bundle.path
        self._rows = {
            name: np.memmap(path / t.path, CODES[t.dtype], "r", shape=(t.rows, t.width))
            for name, t in manifest.tables.items()
        }
        self._scales = {
            name: np.memmap(path / t.scales, "<f4", "r", shape=(t.rows, 1))
            for name, t in manifest.tables.items()
            if t.scales is not None
        }
        self._ropes = {
            name: np.load(path / rope.path, mmap_mode="r") for name, rope in manifest.ropes.items()
        }
        made = manifest.per_layer
        self._combination = None if made is None else _mapped(made, path, manifest.model.hidden)

    def check(self, tokens: Sequence[int], end: int) -> None:
        """Refuse tokens without a row, and positions up to `end` without angles."""
        for name, table in self.bundle.manifest.tables.items():
            beyond = [token for token in tokens if token >= table.rows]
            if beyond:
                message = f"token {beyond[0]} has no row among the {table.rows} of table `{name}`"
                self._refuse("run.no-row", message, "leave it out; the model has no values for it")
        for name, rope in self.bundle.manifest.ropes.items():
            if end > rope.positions:
                message = f"position {end - 1} is beyond the {rope.positions} of rope `{name}`"
                remedy = "compile with a longer rope table"
                self._refuse("run.position-beyond-table", message, remedy)

    def rows(self, name: str, ids: Sequence[int]) -> Array:
        """The tokens' rows of a table, (T, width), in their true values."""
        index = np.asarray(ids)
        found: Array = self._rows[name][index].astype(np.float32)
        if name in self._scales:
            found = found * self._scales[name][index]
        return found * np.float32(self.bundle.manifest.tables[name].multiplier)

    def angles(self, name: str, half: int, positions: Positions) -> Array:
        """Cosines (half 0) or sines (half 1) of positions, (T, width), as the table holds them."""
        found: Array = self._ropes[name][half][positions]
        return found

    def per_layer(self, ids: Sequence[int]) -> Array:
        """The tokens' per-layer vectors, (T, layers * width): a projection, a norm and a row."""
        made = self.bundle.manifest.per_layer
        if made is None or self._combination is None:
            raise AssertionError  # the opening of the bundle has found it present
        projection, gain = self._combination
        embedded = self.rows(made.embedding, ids)
        blocks = np.split(projection, made.layers)  # a layer's at a time in memory
        context = np.stack([embedded @ np.asarray(one, np.float32).T for one in blocks], axis=1)
        context = context * np.float32(made.projection_factor)
        square = np.mean(context * context, axis=-1, keepdims=True)
        context = context / np.sqrt(square + np.float32(made.eps)) * np.asarray(gain, np.float32)
        vectors = context + self.rows(made.rows, ids).reshape(context.shape)
        found: Array = (vectors * np.float32(made.combined_factor)).reshape(len(ids), -1)
        return found

    def _refuse(self, code: str, message: str, remedy: str) -> NoReturn:
        raise TopocError(error(code, message, Place(str(self.bundle.path)), help=remedy))


def _mapped(made: PerLayer, path: Path, hidden: int) -> tuple[Array, Array]:
    """The projection (layers * width, H) and the gain (width,)."""
    code, channels = CODES[made.dtype], made.layers * made.width
    return (
        np.memmap(path / made.projection, code, "r", shape=(channels, hidden)),
        np.memmap(path / made.gain, code, "r", shape=(made.width,)),
    )
