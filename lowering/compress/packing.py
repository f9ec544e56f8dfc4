"""Sub-byte integers as a little-endian stream of bits, as Core ML's weight files hold them."""

from math import gcd

import numpy as np
from attrs import define, field
from numpy.typing import NDArray

Bytes = NDArray[np.uint8]
PIECE = 1 << 18  # values that are packed at once, small enough for the processor's cache


def packed_bytes(bits: int, count: int) -> int:
    """How many bytes hold this many values."""
    return (count * bits + 7) // 8


def pack(values: Bytes, bits: int) -> Bytes:
    """Values below 2^bits, one a byte, as a stream; the last byte is filled with zero bits."""
    if bits == 8:
        return values.reshape(-1)
    flat = values.reshape(-1)
    per = 8 // gcd(8, bits)  # values that fill whole bytes
    tail = -len(flat) % per
    if tail:
        flat = np.concatenate([flat, np.zeros(tail, np.uint8)])
    packed = np.concatenate([_words(flat[at : at + PIECE], bits, per) for at in _pieces(flat)])
    return packed[: packed_bytes(bits, values.size)]


def _pieces(flat: Bytes) -> range:
    return range(0, max(len(flat), 1), PIECE)


def _words(flat: Bytes, bits: int, per: int) -> Bytes:
    """`per` bytes seen as one word, whose parts are shifted down over the unused bits."""
    word = np.dtype(f"<u{per}").type
    wide = np.ascontiguousarray(flat).view(word)
    whole = per * bits == 8  # then what is shifted too far leaves the byte that is kept
    mask = (1 << bits) - 1
    found = wide.copy() if whole else wide & word(mask)
    for k in range(1, per):
        moved = wide >> word((8 - bits) * k)
        if not whole:
            moved &= word(mask << bits * k)
        found |= moved
    if whole:
        kept: Bytes = found.astype(np.uint8)
        return kept
    return _three_of_four(found.astype(np.uint32))


def _three_of_four(words: NDArray[np.uint32]) -> Bytes:
    """The low three bytes of each word, one behind the other; byte by byte it takes much longer."""
    short = -len(words) % 4
    first, second, third, fourth = np.pad(words, (0, short)).reshape(-1, 4).T
    out = np.empty((len(first), 3), np.uint32)
    out[:, 0] = first | second << np.uint32(24)
    out[:, 1] = second >> np.uint32(8) | third << np.uint32(16)
    out[:, 2] = third >> np.uint32(16) | fourth << np.uint32(8)
    return out.astype("<u4", copy=False).view(np.uint8).reshape(-1)[: 3 * len(words)]


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
        stream = pack(values, self.bits)
        self.out[self._at : self._at + len(stream)] = stream
        self._at += len(stream)
