"""Files that a table or folders name, whatever is in them: pictures, sounds."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, Protocol, TypeVar

from legato.data.sources.columns import Roles
from legato.data.sources.files import FileOptions, resolve_path
from legato.data.sources.patterns import Source, source_files, source_name
from legato.data.sources.table import Column, Head, Table
from legato.data.sources.tables import locate, read_table, tabbed
from legato.errors import DataError, LegatoError, brief

HASHED: Final = 1 << 31  # bytes of all files up to which each is hashed; of more, their sizes are

T = TypeVar("T")


class NamedFile(Protocol):
    """A file, a part of one, its bytes, or what makes it."""

    @property
    def data(self) -> bytes | None: ...

    @property
    def size(self) -> int: ...

    def raw(self) -> bytes: ...


def digest_of_files(files: Iterable[NamedFile]) -> Iterator[bytes]:
    """What names the files' content: the hash of each, or its size where they are too many to be read for that."""
    every = list(files)
    sizes = [len(file.data) if file.data is not None else file.size for file in every]
    whole = sum(sizes) <= HASHED
    for file, size in zip(every, sizes, strict=True):
        yield hashlib.sha256(file.raw()).digest() if whole else size.to_bytes(8, "little")


def find_files(table: Table, find: Callable[[Any, str], T]) -> list[T]:
    """What `find` makes of each value of a table's first column; whatever it raises is a mistake in that row."""
    found = []
    for row, value in enumerate(table.columns[0]):
        where = table.where(row)
        try:
            found.append(find(value, where))
        except LegatoError:
            raise
        except Exception as problem:
            raise DataError(
                f"{where}: {brief(repr(value))} names no file ({brief(problem)}); correct it, or remove the row"
            ) from None
    return found


def printable(name: str) -> str:
    """A file's name with `?` for its bytes that are no UTF-8."""
    return name.encode("utf-8", "replace").decode("utf-8")


def read_naming_table(
    source: Source, files: FileOptions, roles: Roles, columns: Sequence[Column] | None
) -> tuple[Table, Path | None, str]:
    """A table whose first column names files or holds them, where it lies, and a note of what was guessed."""
    roles.check(columns)
    guessed: dict[str, Column] = {}

    def choose(head: Head) -> Sequence[Column]:
        if columns is not None:
            return columns
        guessed.update(roles.by_name(head))
        return list(guessed.values())

    places = [locate(name, files.root) for name in source_files(source, files.root)]
    if len({place and place.parent for place in places}) > 1:
        raise DataError(f"{source_name(source)}: tables that name files lie in one folder; put them into one")
    table = read_table(source, choose, replace(tabbed(source, files), binary=1))
    if not table.lines:
        raise DataError(f"{table.source} is empty: it holds no rows; give a file that does")
    told = " and ".join(f"{column} as {name}" for column, name in zip(table.shown, guessed, strict=False))
    place = places[0] if table.memory_folder is None else table.memory_folder / "table"
    return table, place, f"reading {told}" if guessed else table.note


def source_folder(source: Source, root: str | None = None) -> Path | None:
    """The folder that a source is; None where it is something else."""
    if not isinstance(source, str) or source.startswith("hub:"):
        return None
    path = resolve_path(source, root)
    return path if path.is_dir() else None


def class_folders(folder: Path, inside: Callable[[Path], list[T]], what: str, like: str) -> list[tuple[T, str]]:
    """What lies `inside` the folder of each class, with the class; `what` that is, and what its files look `like`."""
    classes = sorted(path for path in folder.iterdir() if path.is_dir() and not path.name.startswith("."))
    if not classes:
        raise DataError(
            f"{folder} has no folders in it; put the {what}s of each class in one of its own, {folder}/CLASS/{like}"
        )
    found: list[tuple[T, str]] = []
    for place in classes:
        here = inside(place)
        if not here:
            ending = next((file.suffix for file in sorted(place.iterdir()) if file.suffix), "")
            others = f" but {ending} files, for which there may be another task" if ending else ""
            raise DataError(
                f"{place} holds no {what}{others}, so that class cannot be learned; put some in, or remove it"
            )
        found += [(each, place.name) for each in here]
    return found
