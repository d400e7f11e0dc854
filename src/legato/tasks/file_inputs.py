"""What `predict --file` reads for models of pictures or sounds: a file, a folder, a `.tar`, a list, or a table.

And what a text names where it is the name of a file, which is then not meant as a text.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from legato.data.audio.sounds import is_sound_file
from legato.data.image.pictures import is_picture_file
from legato.data.sources.columns import Role
from legato.data.sources.files import load_text
from legato.data.sources.named_files import find_files, printable
from legato.data.sources.patterns import source_files
from legato.data.sources.table import Column, Head
from legato.data.sources.tables import FILE_SUFFIXES, kind_of, read_table, tabbed
from legato.errors import DataError, brief, listed
from legato.input_files import near_path, path_of
from legato.tasks.table_inputs import ColumnChoice, TableInputs


@dataclass(frozen=True)
class FileKind:
    """A kind of files that a model reads, and how they are found."""

    what: str  # such as "picture"
    endings: tuple[str, ...]
    role: Role  # of a table's column
    one: Callable[[Path, str], Any]  # of a path and a name
    in_folder: Callable[[Path], list[Path]]
    in_tar: Callable[[Path], Sequence[Any]]
    finder: Callable[[Path], Callable[[Any, str], Any]]  # of a table: from what stands in a row, and where

    def read(
        self, source: str, trained: Sequence[Column] | None = None, columns: Sequence[Column] | None = None
    ) -> TableInputs:
        """Those that files or a folder name; of a table those of `columns`, else as in training, else guessed."""
        names = source_files(source)
        if len(names) > 1 and any(kind_of(path_of(name)) == "text" for name in names):
            parts = [self.read(name, trained, columns) for name in names]
            every = [
                name
                for file, part in zip(names, parts, strict=True)
                for name in part.names or [file] * len(part.texts)
            ]
            return TableInputs([item for part in parts for item in part.texts], names=every, unit=self.what)
        path = existing(names[0])
        if path.is_dir():
            return self._folder(path)
        if path.suffix.lower() in self.endings:
            return TableInputs([self.one(path, printable(source))], unit=self.what)
        if path.suffix.lower() == ".tar":
            members = self.in_tar(path)
            return TableInputs(list(members), names=[printable(each.name) for each in members], unit=self.what)
        if kind_of(path) == "text":  # one a line: as it stands, or else beside the list
            lines = load_text(path).splitlines()
            return TableInputs([_beside(line.strip(), path.parent) for line in lines], unit="line")
        return self._table(source, path, trained, columns)

    def _folder(self, folder: Path) -> TableInputs:
        """Every one of them, by name."""
        found = self.in_folder(folder)
        if not found:
            raise DataError(f"{folder} holds no {self.what}; those end in {', '.join(self.endings)}")
        names = [printable(str(path.relative_to(folder))) for path in found]
        every = [self.one(path, name) for path, name in zip(found, names, strict=True)]
        return TableInputs(every, names=names, unit=self.what)

    def _table(
        self, source: str, path: Path, trained: Sequence[Column] | None, columns: Sequence[Column] | None
    ) -> TableInputs:
        if columns is not None and len(columns) != 1:
            raise DataError(f"--columns names {len(columns)} columns; name the one of the {self.what}s")
        choice = ColumnChoice(columns, trained, self._guess)
        table = read_table(source, choice, replace(tabbed(source), binary=1))
        if not table.lines:
            raise DataError(f"{table.source} is empty: it holds no rows; give a file that does")
        every = find_files(table, self.finder(path))
        note = f"{table.source}: reading {table.shown[0]} as {self.what}" if choice.guessed else ""
        return TableInputs(every, note, unit="row")

    def _guess(self, head: Head) -> Sequence[Column]:
        """Their column by its name, or where there is no other."""
        if named := self.role.find(head.names):
            return named[:1]
        if len(head.names) == 1:
            return [1] if head.separated else head.names
        raise DataError(
            f"{head.where} has the columns {listed(head.names)}; say which is the {self.what}: "
            f"--columns {brief(head.names[0])}"
        )


def file_kind(text: str) -> str | None:
    """The kind of the file that a text names: picture, sound, table, text file, or file; None: it names none."""
    if is_picture_file(text) or is_sound_file(text):
        return "picture" if is_picture_file(text) else "sound"
    path = Path(text)
    try:
        if not path.suffix or not path.is_file():
            return None
    except (OSError, ValueError):  # no file could be called so
        return None
    if path.suffix.lower() not in FILE_SUFFIXES:
        return "file"
    return "table" if kind_of(path) != "text" else "text file"


def refuse_files(texts: Sequence[str], reader: str, advice: str = "give it a text from it") -> None:
    """Refuse texts that name files, whose names a `reader` would read; `advice` is for tables and text files."""
    for text in texts:
        if (kind := file_kind(text)) is not None:
            better = advice.format(shlex.quote(text)) if kind in ("table", "text file") else "give it a text"
            raise DataError(f"{brief(text, 300)} is a {kind}, but {reader} reads text; {better}")


def existing(source: str) -> Path:
    """The file or folder of this name, or a line that says what is near."""
    path = path_of(source)
    if not path.exists():
        near = near_path(path) or near_path(path, folder=True)
        hint = "check the path" if near is None else f"did you mean '{near}'?"
        raise DataError(f"there is no file or folder {brief(path, 300)}; {hint}")
    return path


def _beside(name: str, folder: Path) -> str:
    if not name or path_of(name).is_file() or not (folder / name).is_file():
        return name
    return str(folder / name)
