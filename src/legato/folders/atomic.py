"""Writing folders so that a kill at any moment leaves the old one or the new one, never half of one.

A folder is written under a temporary name beside its place and renamed when it is complete.
Replacing an existing folder takes two renames; `recover` finishes what a kill between them left.
"""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from legato.errors import FolderError

NEW = ".new-"  # being written; worthless until renamed
OLD = ".old-"  # stepped aside for its replacement


@contextmanager
def replacing(place: Path) -> Iterator[Path]:
    """A folder to write into; it becomes `place` when the block ends well, and vanishes when it does not."""
    fresh = place.parent / f"{NEW}{place.name}"
    aside = place.parent / f"{OLD}{place.name}"
    with clear_errors(place):
        place.parent.mkdir(parents=True, exist_ok=True)
        recover(place)
        fresh.mkdir()
        try:
            yield fresh
            _sync(fresh)
            if place.exists():
                place.rename(aside)
            fresh.rename(place)
        except BaseException:
            shutil.rmtree(fresh, ignore_errors=True)
            recover(place)
            raise
        shutil.rmtree(aside, ignore_errors=True)


def recover(place: Path) -> None:
    """Put right what a kill in the middle of `replacing` left behind."""
    aside = place.parent / f"{OLD}{place.name}"
    if aside.exists():
        if place.exists():
            shutil.rmtree(aside)
        else:
            aside.rename(place)
    shutil.rmtree(place.parent / f"{NEW}{place.name}", ignore_errors=True)


def write_text(path: Path, text: str) -> None:
    """Replace one file at once."""
    fresh = path.with_name(f"{NEW}{path.name}")
    with clear_errors(path):
        try:
            fresh.write_text(text, encoding="utf-8")
            os.replace(fresh, path)
        except BaseException:
            fresh.unlink(missing_ok=True)
            raise


@contextmanager
def clear_errors(place: Path) -> Iterator[None]:
    """Turn a full disk or a forbidden folder into one line."""
    try:
        yield
    except OSError as problem:
        if problem.errno in (errno.ENOSPC, errno.EDQUOT):
            raise FolderError(
                f"the disk is full: {place} could not be written; free some space and go on from the last checkpoint"
            ) from problem
        if problem.errno in (errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR, errno.EEXIST):
            raise FolderError(f"{place} cannot be written: {problem.strerror}") from problem
        raise


def _sync(folder: Path) -> None:
    for path in folder.rglob("*"):
        if path.is_file():
            with path.open("rb") as file:
                os.fsync(file.fileno())
