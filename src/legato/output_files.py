"""Writing a file beside its place: whoever looks there meets the old one or the new one, never half of one.

The name that it has until then is drawn, so that nobody's file has it. A kill leaves it behind, which harms nothing.
"""

from __future__ import annotations

import errno
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from legato.input_files import path_of

NEW = ".new-"  # begins the name of what is being written
DRAWN = r"-[0-9a-f]{8}"  # ends that of a file, as a pattern


@contextmanager
def replacing_file(path: Path) -> Iterator[Path]:
    """A file to write, which becomes `path` when the block ends well, synced; it vanishes when it does not."""
    fresh = path.with_name(f"{NEW}{path.name}-{secrets.token_hex(4)}")
    fresh.touch(exist_ok=False)
    try:
        yield fresh
        sync(fresh)
        os.replace(fresh, path)
    except BaseException:
        fresh.unlink(missing_ok=True)
        raise
    sync(path.parent)


def sync(path: Path) -> None:
    """Have the disk hold a file, or the names in a folder."""
    if os.name == "nt" and path.is_dir():  # which opens no folders
        return
    handle = os.open(path, os.O_RDONLY | getattr(os, "O_CLOEXEC", 0))  # Windows has no such flag
    try:
        os.fsync(handle)
    except OSError as problem:
        # Of folders, some file systems know nothing.
        if not (path.is_dir() and problem.errno in (errno.EINVAL, errno.EBADF, errno.ENOTSUP)):
            raise
    finally:
        os.close(handle)


def cache_folder() -> Path:
    """`$LEGATO_CACHE`, or `legato` in the user's cache folder."""
    if own := os.environ.get("LEGATO_CACHE"):
        return path_of(own)
    return path_of(os.environ.get("XDG_CACHE_HOME") or "~/.cache") / "legato"
