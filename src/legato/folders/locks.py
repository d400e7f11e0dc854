"""One process at a time: a lock on a file, which ends with the process that holds it.

The system keeps locks by file, not by name. A name may meanwhile have gone to another file, because whoever held the
lock removed it: such a lock is worth nothing, so it is asked for again until the file that is locked is the one at
the path. That is what makes it safe to remove a file whose lock one holds.
"""

from __future__ import annotations

import errno
import os
import stat
import time
from pathlib import Path

from legato.errors import FolderError

try:
    import fcntl
except ImportError:  # not on Windows
    fcntl = None  # type: ignore[assignment]
LOCKS = fcntl is not None


class Held(Exception):
    """Another process has the lock."""


def hold(path: Path) -> int | None:
    """Lock the file at `path`, made where there is none; a handle to `let_go` at the end.

    It is empty; one that is not is somebody's, and refused. Raises `Held` where another process has the lock. Where
    the system or the file system has no locks, nothing is locked.
    """
    if not LOCKS:
        return None
    while True:
        try:
            handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666)
        except OSError as problem:
            if problem.errno in (errno.EISDIR, errno.ELOOP, errno.ENXIO):  # a folder, a link, a socket
                raise _in_the_way(path) from None
            raise
        try:
            if not _is_empty(handle):
                raise _in_the_way(path)
            _lock(handle)
            if same_file(os.fstat(handle), path):
                return handle
        except BaseException:
            os.close(handle)
            raise
        os.close(handle)


def same_file(known: os.stat_result, path: Path) -> bool:
    """Whether `path` still leads to the file that was looked at."""
    try:
        return os.path.samestat(known, os.stat(path))
    except FileNotFoundError:
        return False


def is_held(path: Path) -> bool:
    """Whether a process has the lock at `path`; nothing is made there. Where there are no locks, none has."""
    if not LOCKS:
        return False
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError:
        return False
    try:
        fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
        return False
    except OSError as problem:
        return isinstance(problem, BlockingIOError)
    finally:
        os.close(handle)


def is_locked(handle: int | None) -> bool:
    """Whether what `hold` gave is locked; without locks, another process may write at the same time."""
    if handle is None:
        return False
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)  # again, which changes nothing
        return True
    except OSError:
        return False


def let_go(handle: int | None) -> None:
    if handle is not None:
        os.close(handle)


def remove(path: Path, handle: int | None) -> None:
    """Remove the file of a lock that one holds, unless somebody did and it is another's by now, or wrote to it."""
    if handle is None or (same_file(os.fstat(handle), path) and _is_empty(handle)):
        path.unlink(missing_ok=True)


def _in_the_way(path: Path) -> FolderError:
    return FolderError(f"{path} is in the way: an empty file belongs there, for its lock; move it away")


def _is_empty(handle: int) -> bool:
    found = os.fstat(handle)
    return stat.S_ISREG(found.st_mode) and found.st_size == 0


def _lock(handle: int) -> None:
    for wait_s in (0.001, 0.01, 0.05, None):  # `is_held` has it for a moment
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            if wait_s is None:
                raise Held from None
            time.sleep(wait_s)
        except OSError:  # some network file systems have none
            return
