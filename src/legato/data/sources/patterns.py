"""Patterns of names, of files on disk and in a zip: `treebank.zip!treebank/combined/wsj_018*.mrg`.

They go folder by folder, so that `*` stays within one; `**` is any number of them.

A pattern is followed by all its places at once: those that a name may have reached. So a name is read once, and a
folder on disk is listed once, however many stars there are.
"""

from __future__ import annotations

import contextlib
import glob
import os
import re
import zipfile
import zlib
from collections.abc import Iterable, Iterator, Sequence
from fnmatch import fnmatchcase
from pathlib import Path

from legato.data.sources.files import Budget, no_file, resolve_path
from legato.errors import DataError, listed
from legato.input_files import open_file, path_of
from legato.schema import MAX_DEPTH

SHOWN = 3  # names in a message
IN_ZIP = re.compile(r"(?P<zip>.+\.zip)!(?P<pattern>.*)", re.IGNORECASE)
Source = str | list[str]
"""What rows are read from: a name, a pattern of files' names, or several of those."""

Places = frozenset[int]  # how many parts of a pattern may be behind


def matches(parts: Sequence[str], patterns: Sequence[str]) -> bool:
    """Whether a name, in its parts, matches a pattern in its own."""
    places = _entered({0}, patterns)
    for part in parts:
        places = _after(places, part, patterns)
    return len(patterns) in places


def source_files(source: Source, root: str | None = None) -> list[str]:
    """The names of the files that a source stands for: those of a list in its order, those of a pattern by name.

    What is no pattern, or exists by that very name, stands for itself.
    """
    if not isinstance(source, str):
        if not source:
            raise DataError("the list of files is empty; name one")
        return [name for part in source for name in source_files(part, root)]
    if source.startswith("hub:") or not glob.has_magic(source):
        return [source]
    path = resolve_path(source, root)
    if path.exists():
        return [source]
    files = matching_files(path)
    if not files:
        raise DataError(f"no file matches {path}; correct the pattern, or name a file")
    base = path_of(root) if root else None
    return [str(file.relative_to(base) if base and file.is_relative_to(base) else file) for file in files]


def source_name(source: Source) -> str:
    """A source as messages call it."""
    if isinstance(source, str):
        return source
    return source[0] if len(source) == 1 else f"{source[0]} and {len(source) - 1} more"


def matching_files(path: Path) -> list[Path]:
    """The files that match a pattern, by name; stars mean no name that begins with a dot."""
    fixed = next((number for number, part in enumerate(path.parts) if glob.has_magic(part)), len(path.parts))
    patterns = path.parts[fixed:]
    found: list[Path] = []
    waiting = [(Path(*path.parts[:fixed]), _entered({0}, patterns))]
    seen: set[tuple[int, int, Places]] = set()  # links may lead back
    while waiting:
        folder, places = waiting.pop()
        with contextlib.suppress(OSError):  # it is gone, or nobody may read it
            there = folder.stat()
            if (there.st_dev, there.st_ino, places) in seen:
                continue
            seen.add((there.st_dev, there.st_ino, places))
            for inner in folder.iterdir():
                reached = _after(places, inner.name, patterns, hidden=inner.name.startswith("."))
                if len(patterns) in reached and inner.is_file():
                    found.append(inner)
                elif any(place < len(patterns) for place in reached) and inner.is_dir():
                    waiting.append((inner, reached))
    return sorted(found)


def _after(places: Places, name: str, patterns: Sequence[str], *, hidden: bool = False) -> Places:
    """Where one more name leads."""
    reached = set()
    for place in places:
        if place == len(patterns) or (hidden and not patterns[place].startswith(".")):
            continue
        if patterns[place] == "**":
            reached.add(place)
        elif fnmatchcase(name, patterns[place]):
            reached.add(place + 1)
    return _entered(reached, patterns)


def _entered(places: set[int], patterns: Sequence[str]) -> Places:
    """The same with those behind each `**`, which may stand for nothing."""
    for place, pattern in enumerate(patterns):
        if pattern == "**" and place in places:
            places.add(place + 1)
    return frozenset(places)


# --- in a zip -----------------------------------------------------------------------------------------


def zip_members(path: Path, pattern: str) -> Iterator[tuple[str, bytes]]:
    """The files of a zip that match the pattern."""
    from fsspec.implementations.zip import ZipFileSystem

    if not path.exists():
        raise no_file(path)
    name = str(path)
    try:
        with open_file(path) as packed:
            budget = Budget(str(path), os.fstat(packed.fileno()).st_size)
            archive = ZipFileSystem(packed)
            # It keeps each one's every folder.
            if any(file.count("/") > MAX_DEPTH for file in archive.zip.namelist()):
                raise DataError(f"{path}: a file in it lies in more than {MAX_DEPTH} folders; unpack it")
            sizes = {file: info["size"] for file, info in archive.find("", detail=True).items()}
            found = _matching(sizes, pattern)
            if not found:
                raise DataError(f"{path}: no file in it matches '{pattern}'{_hint(sizes, pattern)}")
            budget.check(sum(sizes[file] for file in found))  # of none more is read than it says
            for file in found:
                name = f"{path}!{file}"
                with archive.open(file) as member:
                    yield name, budget.read(member)
    except (zipfile.BadZipFile, zlib.error, EOFError, OSError) as problem:
        reason = str(problem) or "it ends early"
        raise DataError(f"{name}: not a zip file, or damaged ({reason}); copy it again") from None
    except (NotImplementedError, RuntimeError) as problem:  # an unknown compression; a password
        raise DataError(f"{name} cannot be unpacked ({problem}); unpack it and name the folder") from None


def _matching(files: Iterable[str], pattern: str) -> list[str]:
    return [file for file in sorted(files) if matches(file.split("/"), pattern.split("/"))]


def _hint(files: Iterable[str], pattern: str) -> str:
    """The end of a message about a pattern that matches nothing: what would, and what there is."""
    anywhere = f"**/{pattern}"
    better = len(_matching(files, anywhere))
    advice = f", but '{anywhere}' matches {better:,}" if better else ""
    return f"{advice}; it has {listed(sorted(files), SHOWN)}" if files else "; it is empty"
