"""What a process that helps to write a bundle owes its parent.

It holds the bundle's lock too, so that no other compile begins while it still writes, and it ends
with its parent: the workers of a pool would wait for work for ever.
"""

import os
from collections.abc import Callable
from multiprocessing import parent_process
from multiprocessing.connection import wait
from multiprocessing.reduction import DupFd
from threading import Thread
from typing import Any

from attrs import frozen


@frozen
class Lock:
    """An open and locked file, which a spawned process inherits where it is handed over."""

    handle: int

    def __reduce__(self) -> tuple[Callable[[Any], "Lock"], tuple[Any]]:
        """Pickled while a process is spawned, and at no other time."""
        return _inherited, (DupFd(self.handle),)


def _inherited(handle: Any) -> Lock:  # multiprocessing's own class for descriptors on the way
    return Lock(handle.detach())


def follow(lock: Lock) -> None:
    """Begin as a worker; the lock is held until this process ends."""
    del lock  # the descriptor stays open
    parent = parent_process()
    if parent is not None:
        Thread(target=_end_after, args=(parent.sentinel,), daemon=True).start()


def _end_after(sentinel: int) -> None:
    wait([sentinel])
    os._exit(1)
