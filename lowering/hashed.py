"""A file that is hashed, and brought to the disk, while it is still being written."""

import os
from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor
from hashlib import sha256
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO, Protocol, Self

from attrs import define, field

Buffer = bytes | memoryview

PIECE = 1 << 24  # bytes that are written and hashed at a time
AHEAD = 4  # pieces that may wait to be hashed
SYNCED = 1 << 26  # bytes after which the disk is given what there is


class Sink(Protocol):
    """A file that values are appended to."""

    def tell(self) -> int:
        """How much was written."""

    def flush(self) -> None:
        """Let others read what was written."""

    def write(self, data: Buffer, /) -> object:
        """Append bytes, which nobody changes afterwards."""


@define(eq=False, repr=False)
class HashedFile:
    """A new file; once it is closed, `digest` tells the SHA-256 of what was written.

    One thread hashes what another has written and a third waits for the disk: all three leave the
    interpreter alone meanwhile. What goes wrong in a thread is raised by a later call. Whoever must
    be sure that all of it is on the disk syncs the file once more.
    """

    path: Path
    digest: str = field(init=False, default="")
    _file: BinaryIO = field(init=False)
    _at: int = field(init=False, default=0)
    _sum: Any = field(init=False, factory=sha256)  # hashlib's class has no name
    _batch: list[memoryview] = field(init=False, factory=list)  # written, and in no thread's hands
    _batched: int = field(init=False, default=0)
    _hashed: deque[Future[None]] = field(init=False, factory=deque)
    _synced: Future[None] | None = field(init=False, default=None)
    _unsynced: int = field(init=False, default=0)
    _threads: tuple[ThreadPoolExecutor, ThreadPoolExecutor] = field(init=False)

    def __enter__(self) -> Self:
        self._file = self.path.open("wb")
        self._threads = ThreadPoolExecutor(1), ThreadPoolExecutor(1)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, _: BaseException | None, __: TracebackType | None
    ) -> None:
        try:
            if kind is None:
                self._file.flush()
                self._finish()
        finally:
            for one in self._threads:
                one.shutdown(cancel_futures=True)
            self._file.close()

    def tell(self) -> int:
        """How much was written."""
        return self._at

    def flush(self) -> None:
        """Let others read what was written."""
        self._file.flush()

    def write(self, data: Buffer, /) -> None:
        """Append bytes, which must stay as they are: they are hashed later."""
        whole = memoryview(data).cast("B")
        for at in range(0, len(whole), PIECE):
            piece = whole[at : at + PIECE]
            self._file.write(piece)
            self._at += len(piece)
            self._hash(piece)
            self._sync(len(piece))

    def _hash(self, piece: memoryview) -> None:
        """Hand over what has come together, small pieces with others."""
        self._batch.append(piece)
        self._batched += len(piece)
        if self._batched >= PIECE:
            self._hand_over()
            while len(self._hashed) > AHEAD:
                self._hashed.popleft().result()

    def _hand_over(self) -> None:
        batch, self._batch, self._batched = self._batch, [], 0
        self._hashed.append(self._threads[0].submit(self._update, batch))

    def _update(self, batch: list[memoryview]) -> None:
        for one in batch:
            self._sum.update(one)

    def _sync(self, count: int) -> None:
        """Have the disk take over what was written so far, unless it is still busy with more."""
        self._unsynced += count
        if self._unsynced < SYNCED or (self._synced is not None and not self._synced.done()):
            return
        if self._synced is not None:
            self._synced.result()
        self._unsynced = 0
        self._synced = self._threads[1].submit(os.fsync, self._file.fileno())

    def _finish(self) -> None:
        self._hand_over()
        for one in self._hashed:
            one.result()
        if self._synced is not None:
            self._synced.result()
        self.digest = self._sum.hexdigest()
