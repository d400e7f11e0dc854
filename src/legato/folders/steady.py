"""Reading a folder that a run may be replacing: all that is read is of one version.

A folder is replaced by exchanging it with another one (atomic.py), so while it is the same folder, with the same
entries, its files belong together. Whoever reads several looks at the folder before and after; where it was replaced
meanwhile, it is read again.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final, TypeVar

from legato.errors import FolderError

Read = TypeVar("Read")

PATIENCE: Final = 30.0  # seconds, after which a folder that never stays the same is given up
LEAST: Final = 3  # times that it is read at least, however long one takes
PAUSE: Final = 0.01  # seconds between two


def read_steadily(folder: Path, read: Callable[[Path], Read]) -> Read:
    """`read(folder)`, of one version of the folder."""
    return find_and_read(folder, lambda: folder, read)


def find_and_read(place: Path, find: Callable[[], Path], read: Callable[[Path], Read]) -> Read:
    """The same of the folder that `find` finds at `place`, be it there or further in."""
    began, times = time.monotonic(), 0
    while True:
        looked = [place.parent, place]  # where a folder goes and comes
        before = list(map(identity, looked))
        try:
            folder = find()
            found = identity(folder)
            if found is not None:
                looked, before = [folder], [found]
            value = read(folder)
        except Exception:
            if list(map(identity, looked)) == before:
                raise
        else:
            if list(map(identity, looked)) == before:
                return value
        times += 1
        if times >= LEAST and time.monotonic() - began > PATIENCE:
            raise FolderError(
                f"{place} was replaced again and again while it was read; wait until the run that writes it has ended"
            )
        time.sleep(PAUSE)


def identity(folder: Path) -> tuple[int, ...] | None:
    """What tells a folder from the one that takes its place; None where there is none."""
    try:
        found = os.stat(folder)
    except (OSError, ValueError):  # ValueError: a zero byte in the name
        return None
    return found.st_dev, found.st_ino, found.st_mtime_ns, found.st_ctime_ns
