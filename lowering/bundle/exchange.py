"""Two folders exchanged in one step, where the system offers it."""

import ctypes
import errno
import os
import sys
from pathlib import Path

AT_FDCWD = -100
SWAP = 2  # RENAME_EXCHANGE of Linux and RENAME_SWAP of macOS
UNABLE = frozenset({errno.ENOSYS, errno.EINVAL, errno.ENOTSUP, errno.EOPNOTSUPP})


def exchange(one: Path, other: Path) -> bool:
    """Exchange two paths of one file system; False where system or file system can't."""
    library = ctypes.CDLL(None, use_errno=True)
    first, second = os.fsencode(one), os.fsencode(other)
    if sys.platform == "darwin" and hasattr(library, "renamex_np"):
        failed = library.renamex_np(first, second, ctypes.c_uint(SWAP))
    elif hasattr(library, "renameat2"):
        failed = library.renameat2(AT_FDCWD, first, AT_FDCWD, second, ctypes.c_uint(SWAP))
    else:
        return False
    if not failed:
        return True
    code = ctypes.get_errno()
    if code in UNABLE:
        return False
    raise OSError(code, os.strerror(code), str(other))
