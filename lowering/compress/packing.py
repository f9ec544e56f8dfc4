"""Sub-byte integers as a little-endian stream of bits, as Core ML's weight files hold them."""

from math import gcd
from typing import Any

import numpy as np
from attrs import define, field
from numpy.typing import NDArray

Bytes = NDArray[np.uint8]
PIECE = 1 << 18  # values that are packed at once, small enough for the processor's cache
WHOLE = 16  # values that fill whole words, whatever their bits


def packed_bytes(bits: int, count: int) -> int:
    """How many bytes hold this many values."""
    return (count * bits + 7) // 8


def pack(values: Bytes, bits: int) -> Bytes:
    """Values below 2^bits, one a byte, as a stream; the last byte is filled with zero bits."""
    out = np.empty(packed_bytes(bits, values.size), np.uint8)
    _fill(out, np.ascontiguousarray(values).reshape(-1), bits)
    return out


def _fill(out: Bytes, flat: Bytes, bits: int) -> None:
    step = PIECE * bits // 8
    for at, start in enumerate(range(0, len(flat), PIECE)):
        piece, into = flat[start : start + PIECE], out[at * step : (at + 1) * step]
        tail = -len(piece) % WHOLE
        if tail:
            piece = np.concatenate([piece, np.zeros(tail, np.uint8)])
        into[:] = _stream(piece, bits)[: len(into)]


def _stream(values: Bytes, bits: int) -> Bytes:
    """Neighbours are joined to values of twice the bits, until those are six or eight."""
    if bits == 1:
        return np.packbits(values, bitorder="little")
    while 2 * bits <= 8:
        pairs = values.view("<u2")
        both = pairs >> np.uint16(8 - bits)
        both |= pairs
        values, bits = both.astype(np.uint8), 2 * bits
    if bits == 8:
        return values
    eight = _joined(_joined(_joined(values, 6, "<u2"), 12, "<u4"), 24, "<u8")
    found: Bytes = eight.view("V8").astype("V6").view(np.uint8)  # the low six bytes of each
    return found


def _joined(values: NDArray[Any], bits: int, word: str) -> NDArray[Any]:
    """Two neighbours in a word, the second one moved down to where the first one ends."""
    pairs = values.view(word)
    kind, half = pairs.dtype.type, 4 * pairs.itemsize
    found: NDArray[Any] = pairs - (pairs >> kind(half)) * kind((1 << half) - (1 << bits))
    return found.astype(word, copy=False)


def unpack(stream: Bytes, bits: int, count: int) -> Bytes:
    """The values of a stream, one a byte; the inverse of `pack`."""
    if bits == 8:
        return stream[:count]
    per = 8 // gcd(8, bits)
    size = per * bits // 8  # bytes that hold `per` values
    tail = -len(stream) % size
    if tail:
        stream = np.concatenate([stream, np.zeros(tail, np.uint8)])
    step = PIECE // per * size
    pieces = [stream[at : at + step] for at in range(0, max(len(stream), 1), step)]
    return np.concatenate([_spread(one, bits, per) for one in pieces])[:count]


def _spread(stream: Bytes, bits: int, per: int) -> Bytes:
    """Each `per` values moved apart into the bytes of one word."""
    word = np.dtype(f"<u{per}").type
    size = per * bits // 8
    if size == 1:
        packed = stream.astype(word).reshape(-1, 1)
    else:
        wide = np.zeros((len(stream) // size, per), np.uint8)
        wide[:, :size] = stream.reshape(-1, size)
        packed = wide.view(word)
    mask = (1 << bits) - 1
    found = packed & word(mask)
    for k in range(1, per):
        found |= (packed << word((8 - bits) * k)) & word(mask << 8 * k)
    values: Bytes = found.view(np.uint8).reshape(-1)
    return values


@define
class Packer:
    """Packs values that come in pieces of any length into one stream."""

    out: Bytes
    bits: int
    _at: int = 0
    _kept: Bytes = field(factory=lambda: np.empty(0, np.uint8))

    def append(self, values: Bytes) -> None:
        """Add values; those that do not fill a byte wait for the next."""
        flat = values.reshape(-1)
        if len(self._kept):
            flat = np.concatenate([self._kept, flat])
        whole = len(flat) - len(flat) % (8 // gcd(8, self.bits))
        self._write(flat[:whole])
        self._kept = flat[whole:].copy()

    def finish(self) -> None:
        """Write what waits; the stream is then full."""
        self._write(self._kept)
        if self._at != len(self.out):
            message = f"{self._at} bytes were packed, and {len(self.out)} are needed"
            raise ValueError(message)

    def _write(self, values: Bytes) -> None:
        end = self._at + packed_bytes(self.bits, len(values))
        _fill(self.out[self._at : end], values, self.bits)
        self._at = end
