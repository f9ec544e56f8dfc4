"""Checksums of data and of files, these by several threads, in the background too.

A checksum is the CRC-32 of the sums of all pages, as 64-bit words: three times as fast as a CRC-32
of the bytes. A changed byte changes its page's sum, and a page that is lost, doubled or elsewhere
changes the order of sums. Words that change places inside one page are not seen.
"""

import os
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from zlib import crc32

import numpy as np

PAGE = 1 << 12  # bytes
BLOCK = 1 << 20  # bytes that are read at once: they stay in the processor's cache
PIECE = 1 << 24  # bytes of a file that have a checksum of their own

Sums = list[Future[int]]
"""The checksums of a file's pieces, as they come."""

Buffer = bytes | memoryview


def checksum(data: Buffer, before: int = 0) -> int:
    """The checksum of some bytes, going on from that of what stands before them in whole pages."""
    whole = len(data) - len(data) % PAGE
    if whole:
        words = np.frombuffer(data, "<u8", whole // 8).reshape(-1, PAGE // 8)
        before = crc32(words.sum(1, dtype="<u8").data, before)
    return crc32(memoryview(data)[whole:], before)


@contextmanager
def adder(spared: int = 0) -> Iterator[ThreadPoolExecutor]:
    """Threads for checksums, one a processor but for those that are spared.

    What they have not begun when the block ends is left.
    """
    threads = ThreadPoolExecutor(max(1, (os.cpu_count() or 1) - spared))
    try:
        yield threads
    finally:
        threads.shutdown(cancel_futures=True)


def begun(path: Path, threads: ThreadPoolExecutor) -> Sums:
    """Begin to take the checksums of a file."""
    places = range(0, path.stat().st_size, PIECE)
    return [threads.submit(_sum, path, at) for at in places]


def ended(found: Sums) -> list[int]:
    """The checksums, when all are there; raises what stood in their way."""
    return [one.result() for one in found]


def sums(path: Path) -> list[int]:
    """The checksums of a file's pieces."""
    with adder() as threads:
        return ended(begun(path, threads))


def _sum(path: Path, at: int) -> int:
    found, block = 0, memoryview(bytearray(BLOCK))
    with path.open("rb", buffering=0) as file:
        for place in range(at, at + PIECE, BLOCK):
            found = checksum(block[: os.preadv(file.fileno(), [block], place)], found)
    return found
