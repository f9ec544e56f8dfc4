"""Checksums of files: CRC-32 of each piece, by several threads, in the background too."""

import os
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from zlib import crc32

PIECE = 1 << 24  # bytes of a file that have a checksum of their own

Sums = list[Future[int]]
"""The checksums of a file's pieces, as they come."""


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
    with path.open("rb", buffering=0) as file:
        return crc32(os.pread(file.fileno(), PIECE, at))
