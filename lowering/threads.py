"""How many threads torch works with: one."""

from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def one_thread() -> Iterator[None]:
    """Sums in one order whatever the machine, and nothing spins where it waits.

    Whoever works with torch asks for it, so that a compile that has nothing to work on needs no
    torch at all; how many work is for `--jobs` to say.
    """
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
