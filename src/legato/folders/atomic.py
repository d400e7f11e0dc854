"""Writing folders so that a kill at any moment leaves the old one or the new one, never half of one.

A folder is written under a temporary name beside its place, and takes the place when it is complete. Where there is
one already the two are exchanged in one operation of the system, so that a reader never meets a moment without it.
Where the system has no such operation it takes two renames; `recover` finishes what a kill between them left.

While that goes on, an empty file lies beside it, which is the last to go. It is locked, so that two processes never
write one folder; after a kill it tells what was left here from a folder that somebody else gave such a name.

What somebody else put into a folder is in its successor, too: nothing is lost that was not written here.
"""

from __future__ import annotations

import errno
import os
import shutil
import sys
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from legato.errors import FolderError
from legato.folders.links import refuse_link
from legato.folders.locks import Held, hold, let_go, remove
from legato.output_files import NEW, replacing_file, sync

# Beside NEW, which is being written, or what was replaced: worthless until renamed.
OLD = ".old-"  # stepped aside for its replacement
OWN = ".own-"  # an empty file: whoever has its lock writes the folder, and what has the other two names is ours
AT_FDCWD: Final = -100  # Linux: a path is taken from the working directory
FORBIDDEN: Final = (errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR, errno.EEXIST, errno.ELOOP)
EXCHANGE: Final = 2  # RENAME_EXCHANGE of Linux, and RENAME_SWAP of macOS


@contextmanager
def replacing(place: Path, drop: Collection[str] = ()) -> Iterator[Path]:
    """A folder to write into; it becomes `place` when the block ends well, and vanishes when it does not.

    A link at `place` is refused: what it leads to is not ours to replace.
    Of what `place` holds already and the new folder lacks, all is taken over but the files named in `drop`.
    """
    refuse_link(place)
    _, fresh, _ = _beside(place)
    with clear_errors(place):
        place.parent.mkdir(parents=True, exist_ok=True)
        with _alone(place):
            fresh.mkdir()
            try:
                yield fresh
                _sync(fresh)
                if place.exists():
                    shutil.copymode(place, fresh)
                    _carry(place, fresh, drop)
                left = _put(fresh, place)
            except BaseException:
                shutil.rmtree(fresh, ignore_errors=True)
                _step_back(place)
                raise
            sync(place.parent)
            if left is not None:
                _carry(left, place, drop, move=True)  # what somebody put there since
                shutil.rmtree(left, ignore_errors=True)


def recover(place: Path) -> None:
    """Put right what a kill in the middle of `replacing` left behind.

    Only where all of that is known to be ours, as in a run: versions that had no `OWN` left it, too.
    """
    if any(map(os.path.lexists, _beside(place))):
        with clear_errors(place), _alone(place, ours=True):
            pass


@contextmanager
def _alone(place: Path, *, ours: bool = False) -> Iterator[None]:
    """Be the only process that writes `place`, from before anything is touched until all is done.

    What a kill left is put right first; what is not ours and has its name is refused.
    """
    own, *leftovers = _beside(place)
    ours = ours or os.path.lexists(own)
    try:
        held = hold(own)
    except Held:
        raise FolderError(f"{place} is being written by another process; wait for it or stop it") from None
    if held is None:  # a system without locks
        own.touch()
    try:
        stray = next(filter(os.path.lexists, leftovers), None)
        if stray is not None and not ours:
            remove(own, held)
            raise FolderError(f"{stray} is in the way of writing {place}; move it away")
        _step_back(place)
        if _is_folder(leftovers[0]):
            shutil.rmtree(leftovers[0])
        yield
    finally:
        if not any(map(os.path.lexists, leftovers)):
            remove(own, held)
        let_go(held)


def _beside(place: Path) -> tuple[Path, Path, Path]:
    """The file whose lock says who writes `place`; and where a kill leaves something of it: the new one, the old."""
    own, fresh, aside = (place.parent / f"{mark}{place.name}" for mark in (OWN, NEW, OLD))
    return own, fresh, aside


def _step_back(place: Path) -> None:
    """Of two renames, undo the first where the second did not come."""
    _, _, aside = _beside(place)
    if _is_folder(aside):
        if place.exists():
            shutil.rmtree(aside)
        else:
            aside.rename(place)


def _is_folder(path: Path) -> bool:
    return path.is_dir() and not path.is_symlink()


def _put(fresh: Path, place: Path) -> Path | None:
    """Give the new folder its place; where the old one is now, if there was one."""
    if not place.exists():
        fresh.rename(place)
        return None
    if exchange(fresh, place):
        return fresh
    _, _, aside = _beside(place)
    place.rename(aside)
    fresh.rename(place)
    return aside


def exchange(one: Path, other: Path) -> bool:
    """Let two paths swap what they lead to, at once; False where the system or the file system cannot."""
    import ctypes

    try:
        library = ctypes.CDLL(None, use_errno=True)
        if sys.platform == "darwin":
            failed = library.renamex_np(os.fsencode(one), os.fsencode(other), EXCHANGE)
        else:
            failed = library.renameat2(AT_FDCWD, os.fsencode(one), AT_FDCWD, os.fsencode(other), EXCHANGE)
    except (AttributeError, OSError, TypeError):  # a library without it, or none
        return False
    return not failed


def _carry(old: Path, new: Path, drop: Collection[str], *, move: bool = False) -> None:
    """Take over what the old folder has and the new one lacks; files are linked, not copied, unless moved."""
    for folder, inner, files in os.walk(old):
        below = Path(folder).relative_to(old)
        links = [name for name in inner if os.path.islink(os.path.join(folder, name))]
        for name in (*files, *links):
            source, target = old / below / name, new / below / name
            if (below / name).as_posix() in drop or os.path.lexists(target):
                continue
            target.parent.mkdir(parents=True, exist_ok=True)
            if move:
                source.rename(target)
            elif source.is_symlink() or source.is_file():
                _link(source, target)
        if not inner and not files:
            (new / below).mkdir(parents=True, exist_ok=True)


def _link(source: Path, target: Path) -> None:
    try:
        os.link(source, target, follow_symlinks=False)
    except (OSError, NotImplementedError):  # a file system without links
        shutil.copy2(source, target, follow_symlinks=False)


def write_text(path: Path, text: str) -> None:
    """Replace one file at once."""
    with clear_errors(path), replacing_file(path) as fresh:
        fresh.write_text(text, encoding="utf-8")


@contextmanager
def clear_errors(place: Path, *, every: bool = False) -> Iterator[None]:
    """Turn a full disk or a forbidden folder, or `every` reason not to write, into one line."""
    try:
        yield
    except OSError as problem:
        if problem.errno in (errno.ENOSPC, errno.EDQUOT):
            raise FolderError(
                f"the disk is full: {place} could not be written; free some space and go on from the last checkpoint"
            ) from problem
        if every or problem.errno in FORBIDDEN:
            raise FolderError(f"{place} cannot be written: {problem.strerror or problem}") from problem
        raise


def _sync(folder: Path) -> None:
    """Have the disk hold what was written, names included, before it is given its place."""
    for path in (*folder.rglob("*"), folder):
        if not path.is_symlink() and (path.is_file() or path.is_dir()):
            sync(path)
