"""MIL's data types: their numbers in the protobuf, in a blob record, and in numpy."""

from typing import Any

import numpy as np
from attrs import frozen
from numpy.typing import NDArray

Array = NDArray[Any]  # what it holds is known only from the package


@frozen
class Dtype:
    """One data type; sub-byte values are held in whole bytes once they are read."""

    name: str
    number: int  # in MIL's protobuf
    code: int | None  # in a blob record; None where blobs cannot hold it
    bits: int
    held: str  # numpy's name of what holds a value
    field: str  # of an immediate value in MIL's protobuf

    @property
    def signed(self) -> bool:
        """Whether values below zero exist."""
        return np.dtype(self.held).kind in "if"


DTYPES = (
    Dtype("bool", 1, None, 8, "bool", "bools"),
    Dtype("string", 2, None, 0, "object", "strings"),
    Dtype("fp16", 10, 1, 16, "<f2", "bytes"),
    Dtype("fp32", 11, 2, 32, "<f4", "floats"),
    Dtype("fp64", 12, None, 64, "<f8", "doubles"),
    Dtype("int8", 21, 4, 8, "int8", "bytes"),
    Dtype("int16", 22, 6, 16, "<i2", "ints"),
    Dtype("int32", 23, 14, 32, "<i4", "ints"),
    Dtype("int64", 24, None, 64, "<i8", "longInts"),
    Dtype("int4", 25, 8, 4, "int8", "bytes"),
    Dtype("uint8", 31, 3, 8, "uint8", "bytes"),
    Dtype("uint16", 32, 7, 16, "<u2", "ints"),
    Dtype("uint32", 33, 15, 32, "<u4", "bytes"),
    Dtype("uint4", 35, 11, 4, "uint8", "bytes"),
    Dtype("uint2", 36, 10, 2, "uint8", "bytes"),
    Dtype("uint1", 37, 9, 1, "uint8", "bytes"),
    Dtype("uint6", 38, 13, 6, "uint8", "bytes"),
    Dtype("uint3", 39, 12, 3, "uint8", "bytes"),
)

BY_NUMBER = {dtype.number: dtype for dtype in DTYPES}
BY_NAME = {dtype.name: dtype for dtype in DTYPES}
FEATURE_DTYPES = {65552: "fp16", 65568: "fp32", 131104: "int32", 131080: "int8"}


def packed_bytes(dtype: Dtype, count: int) -> int:
    """How many bytes hold this many values."""
    return (count * dtype.bits + 7) // 8


def unpack(raw: NDArray[np.uint8], dtype: Dtype, count: int) -> Array:
    """Values from bytes; sub-byte values are a bit stream whose lowest bits come first."""
    if dtype.bits >= 8:
        return raw.view(np.dtype(dtype.held))[:count]
    values = _nibbles(raw) if dtype.bits == 4 else _bit_stream(raw, dtype.bits, count)
    values = values[:count]
    if not dtype.signed:
        return values
    sign = np.uint8(1 << (dtype.bits - 1))
    return ((values ^ sign).astype(np.int8) - np.int8(sign)).astype(np.int8)


def _nibbles(raw: NDArray[np.uint8]) -> NDArray[np.uint8]:
    values = np.empty((raw.size, 2), np.uint8)
    np.bitwise_and(raw, 15, out=values[:, 0])
    np.right_shift(raw, 4, out=values[:, 1])
    return values.reshape(-1)


def _bit_stream(raw: NDArray[np.uint8], bits: int, count: int) -> NDArray[np.uint8]:
    stream = np.unpackbits(raw, bitorder="little", count=count * bits).reshape(count, bits)
    weights = (1 << np.arange(bits)).astype(np.uint8)
    values: NDArray[np.uint8] = (stream * weights).sum(axis=1, dtype=np.uint8)
    return values
