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

PIECE = 1 << 20  # bytes that are written and then hashed, while the processor still has them
AHEAD = 16  # pieces that may wait to be hashed
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
    _hash: "_Hash" = field(init=False)
    _disk: "_Disk" = field(init=False)

    def __enter__(self) -> Self:
        self._file = self.path.open("wb")
        self._hash, self._disk = _Hash(), _Disk(self._file.fileno())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, _: BaseException | None, __: TracebackType | None
    ) -> None:
        try:
            if kind is None:
                self._file.flush()
                digest = self._hash.taken()
                self._disk.wait()
                self.digest = digest
        finally:
            for one in (self._hash, self._disk):
                one.thread.shutdown(cancel_futures=True)
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
            self._hash.take(piece)
            self._disk.take(len(piece))


def _thread() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(1)


@define(eq=False, repr=False)
class _Hash:
    """Hashes in a thread what comes to it, small pieces together."""

    thread: ThreadPoolExecutor = field(factory=_thread)
    sum: Any = field(factory=sha256)  # hashlib's class has no name
    batch: list[memoryview] = field(factory=list)
    size: int = 0  # bytes of the batch
    given: deque[Future[None]] = field(factory=deque)

    def take(self, piece: memoryview) -> None:
        """Wait while there is too much to do, so that memory stays small."""
        self.batch.append(piece)
        self.size += len(piece)
        if self.size >= PIECE:
            self._give()
            while len(self.given) > AHEAD:
                self.given.popleft().result()

    def taken(self) -> str:
        """The hash of all that came."""
        self._give()
        for one in self.given:
            one.result()
        found: str = self.sum.hexdigest()
        return found

    def _give(self) -> None:
        batch, self.batch, self.size = self.batch, [], 0
        self.given.append(self.thread.submit(self._update, batch))

    def _update(self, batch: list[memoryview]) -> None:
        for one in batch:
            self.sum.update(one)


@define(eq=False, repr=False)
class _Disk:
    """Has the disk take over in a thread what was written to an open file."""

    handle: int
    thread: ThreadPoolExecutor = field(factory=_thread)
    fresh: int = 0  # bytes that it was not asked for yet
    asked: Future[None] | None = None

    def take(self, count: int) -> None:
        """Ask for what came together, unless the disk is still busy with what came before."""
        self.fresh += count
        if self.fresh >= SYNCED and (self.asked is None or self.asked.done()):
            self.wait()
            self.fresh, self.asked = 0, self.thread.submit(os.fsync, self.handle)

    def wait(self) -> None:
        """Until it has what it was asked for; raises what it refused."""
        if self.asked is not None:
            self.asked.result()
