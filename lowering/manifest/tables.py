"""The files of a bundle that a host reads rows of."""

from typing import Literal

from attrs import frozen

from topoc.dsl.plain import Plain


@frozen(kw_only=True, eq=False, repr=False)
class Table(Plain):
    """Embedding rows on the host: raw little-endian values, one row a token.

    The embedding of a token is row * multiplier, or row * scale of the row * multiplier where
    `scales` names a file of one float32 a row.
    """

    path: str
    dtype: Literal["fp16", "fp32", "int8"]
    rows: int
    width: int
    multiplier: float
    scales: str | None = None


@frozen(kw_only=True, eq=False, repr=False)
class RopeTable(Plain):
    """A .npy file of cosines and sines, (2, positions, width)."""

    path: str
    positions: int
    width: int


@frozen(kw_only=True, eq=False, repr=False)
class PerLayer(Plain):
    """How the host makes per-layer vectors, where no package does.

    With e the token's embedding (row * multiplier of the table `embedding`), in float32:
    context = rms(projection e * projection_factor, eps over each layer's width) * gain;
    vector  = (context + row * multiplier of the table `rows`) * combined_factor.
    `projection` and `gain` name raw little-endian files, (layers * width, H) and (width,).
    """

    embedding: str
    rows: str
    projection: str
    gain: str
    dtype: Literal["fp16", "fp32"]
    layers: int
    width: int
    eps: float
    projection_factor: float
    combined_factor: float
