"""Opening files that others made: regular ones, no larger than they may be; and what a name of one means.

A pipe without a writer is waited for without end, and a device such as /dev/zero has no end; a file may be larger
than memory. All three are refused before the first byte is read.
"""

from __future__ import annotations

import difflib
import itertools
import os
import stat
from io import BufferedReader
from pathlib import Path

from legato import memory
from legato.errors import DataError, LegatoError, brief

KINDS = {
    stat.S_IFIFO: "a pipe",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
    stat.S_IFSOCK: "a socket",
}

MAX_PART = 255  # bytes between two slashes, as nearly every file system has it
MAX_PATH = 4095
BESIDE = 10_000  # names of a folder that a mistyped one is compared with
NEAR = 0.75  # how alike two names are, from 0 to 1, of which one is the other mistyped
SLIPS = 2  # letters that a mistyped name has more or fewer


def path_of(name: str | Path, root: str | Path | None = None, *, error: type[LegatoError] = DataError) -> Path:
    """The path that somebody's text names: `~` is their home; a relative one lies under `root` where there is one.

    What no file could be called is an `error` of one line here, so that no later look at it fails.
    """
    if not isinstance(name, str | os.PathLike):
        raise error(f"a file, a folder or a model is a name, such as 'runs/x', not {brief(repr(name))}")
    try:
        path = Path(name).expanduser()
    except RuntimeError:
        raise error(f"{brief(name)}: there is no such user's home folder; write the whole path") from None
    if root:
        path = path_of(root, error=error) / path
    try:
        raw = os.fsencode(path)
    except UnicodeEncodeError:
        raise error(f"{brief(path)}: half a character (a lone surrogate) is in no file's name; rename it") from None
    if b"\0" in raw:
        raise error(f"{brief(path)}: a zero byte is in no file's name; rename it")
    if len(raw) > MAX_PATH or max(map(len, raw.split(os.sep.encode()))) > MAX_PART:
        raise error(f"{brief(path)}: the name is too long: {MAX_PART} bytes between two slashes, {MAX_PATH:,} in all")
    return path


def near_path(path: Path, *, folder: bool = False) -> Path | None:
    """The file, or `folder`, that is there and that a name which is not was meant to be; None where there is none.

    A slip of a letter or two is looked for in each part of the path, and an ending that was left out or is another.
    """
    parent = path.parent
    if not parent.is_dir():
        near = None if parent == parent.parent else near_path(parent, folder=True)
        if near is None:
            return None
        parent = near
        if (parent / path.name).exists():
            return parent / path.name
    try:
        with os.scandir(parent) as entries:
            found = [entry.name for entry in itertools.islice(entries, BESIDE) if entry.is_dir() == folder]
    except OSError:  # nobody may look
        return None
    names = sorted(name for name in found if name.startswith(".") == path.name.startswith("."))
    ending = next((name for name in names if Path(name).stem in (path.name, path.stem) and not folder), None)
    like = [name for name in names if abs(len(name) - len(path.name)) <= SLIPS]
    slip = difflib.get_close_matches(path.name, like, n=1, cutoff=NEAR)
    best = slip[0] if slip else ending
    return None if best is None or not path.name else parent / best


def open_file(path: Path, *, error: type[LegatoError] = DataError) -> BufferedReader:
    """A regular file, open for reading; anything else is an `error` of one line."""
    try:
        # Not blocking, so that opening a pipe does not wait for somebody to write to it; Windows has neither flag.
        handle = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_CLOEXEC", 0))
    except FileNotFoundError:
        near = near_path(path)
        raise error(f"there is no file {path}" + ("" if near is None else f"; did you mean '{near}'?")) from None
    except PermissionError:
        raise error(f"{path} may not be read by this user; change its permissions") from None
    except (OSError, ValueError) as problem:  # ValueError: a zero byte in the name
        reason = problem.strerror if isinstance(problem, OSError) else problem
        raise error(f"{path} cannot be read: {reason}") from None
    try:
        check_regular(path, os.fstat(handle), error=error)
        return os.fdopen(handle, "rb")
    except BaseException:
        os.close(handle)
        raise


def check_regular(path: Path, state: os.stat_result, *, error: type[LegatoError] = DataError) -> None:
    """Refuse what is no regular file by its `stat`: a folder, a pipe, a device, a socket."""
    kind = stat.S_IFMT(state.st_mode)
    if kind == stat.S_IFDIR:
        raise error(f"{path} is a folder; name a file in it")
    if kind != stat.S_IFREG:
        raise error(f"{path} is {KINDS.get(kind, 'no regular file')}; write what it gives into a file first")


def read_bytes(path: Path, most: int | None = None, *, error: type[LegatoError] = DataError) -> bytes:
    """What is in a regular file of at most `most` bytes."""
    with open_file(path, error=error) as file:
        size = os.fstat(file.fileno()).st_size
        if most is not None and size > most:
            raise error(f"{path} has {size:,} bytes, more than the {most:,} that a file of its kind may have")
        memory.refuse_beyond(size, f"reading {path}", "give a smaller file", error=error)
        try:
            return file.read() if most is None else file.read(min(most, size + 1))  # it takes what is asked for
        except OSError as problem:
            raise error(f"{path} cannot be read: {problem.strerror}") from None
        except MemoryError:
            raise error(f"{path} has {size:,} bytes, which do not fit into memory") from None
