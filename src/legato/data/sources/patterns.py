"""Patterns of names, folder by folder, so that `*` stays within one; `**` is any number of them.

A pattern is followed by all its places at once: those that a name may have reached. So a name is read once, and a
folder on disk is listed once, however many stars there are.
"""

from __future__ import annotations

import contextlib
import glob
from collections.abc import Sequence
from fnmatch import fnmatchcase
from pathlib import Path

Places = frozenset[int]  # how many parts of a pattern may be behind


def matches(parts: Sequence[str], patterns: Sequence[str]) -> bool:
    """Whether a name, in its parts, matches a pattern in its own."""
    places = _entered({0}, patterns)
    for part in parts:
        places = _after(places, part, patterns)
    return len(patterns) in places


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
