"""One process at a time: a lock on a file or a folder, which ends with the process that holds it.

The system keeps locks by file, not by name. A name may meanwhile have gone to another file, because whoever held the
lock removed it: such a lock is worth nothing, so it is asked for again until the file that is locked is the one at
the path. That is what makes it safe to remove a file whose lock one holds.
"""

from __future__ import annotations

import os
from pathlib import Path

try:
    import fcntl
except ImportError:  # not on Windows
    fcntl = None  # type: ignore[assignment]
LOCKS = fcntl is not None


class Held(Exception):
    """Another process has the lock."""


def hold(path: Path, *, make: bool = False) -> int | None:
    """Lock what is at `path`, or with `make` a file made where there is none; a handle to `let_go` at the end.

    Raises `Held` where another process has it. Where the system or the file system has no locks, nothing is locked.
    """
    if not LOCKS:
        return None
    flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW if make else os.O_RDONLY
    while True:
        handle = os.open(path, flags | os.O_CLOEXEC, 0o666)
        try:
            _lock(handle)
            if same_file(os.fstat(handle), path):
                return handle
        except BaseException:
            os.close(handle)
            raise
        os.close(handle)


def same_file(known: os.stat_result, path: Path) -> bool:
    """Whether `path` still leads to the file or folder that was looked at."""
    try:
        return os.path.samestat(known, os.stat(path))
    except FileNotFoundError:
        return False


def let_go(handle: int | None) -> None:
    if handle is not None:
        os.close(handle)


def _lock(handle: int) -> None:
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise Held from None
    except OSError:  # some network file systems have none, others none for folders
        return
