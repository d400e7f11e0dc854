"""What `predict --file` reads for models of pictures: a folder or a `.tar` of them, a list of files, or a table.

For models of clips a folder has a file, or a folder of frames, for each.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from legato.data.formats.picture_rows import IMAGE
from legato.data.image.clips import clips_in, find_clip
from legato.data.image.picture_files import (
    Picture,
    PictureFinder,
    members_of,
    picture_file,
    pictures_in,
    printable,
)
from legato.data.image.pictures import ENDINGS
from legato.data.sources.files import load_text
from legato.data.sources.table import Column, Head
from legato.data.sources.tables import kind_of, read_table, tabbed
from legato.errors import DataError, brief, listed
from legato.input_files import near_path, path_of
from legato.tasks.table_inputs import ColumnChoice, TableInputs


def read_pictures(
    source: str,
    trained: Sequence[Column] | None = None,
    columns: Sequence[Column] | None = None,
    *,
    clips: bool = False,
) -> TableInputs:
    """The pictures, or `clips`, that a file or folder names; of a table those of `columns`, else as in training, else
    guessed."""
    path = path_of(source)
    if not path.exists():
        near = near_path(path) or near_path(path, folder=True)
        hint = "check the path" if near is None else f"did you mean '{near}'?"
        raise DataError(f"there is no file or folder {brief(path, 300)}; {hint}")
    if path.is_dir():
        return _clips(path) if clips else _folder(path)
    if path.suffix.lower() in ENDINGS:
        return TableInputs([picture_file(path, printable(source))], unit="picture")
    if path.suffix.lower() == ".tar":
        members = list(members_of(path).values())
        return TableInputs(members, names=[printable(picture.name) for picture in members], unit="picture")
    if kind_of(path) == "text":
        return _listed(path)
    return _table(source, path, trained, columns, find_clip if clips else PictureFinder.find)


def _clips(folder: Path) -> TableInputs:
    """Every clip, by name."""
    found = clips_in(folder)
    if not found:
        raise DataError(f"{folder} holds no clip: neither a file that ends in {', '.join(ENDINGS)} nor a folder")
    return TableInputs(found, names=[printable(clip.name) for clip in found], unit="clip")


def _folder(folder: Path) -> TableInputs:
    """Every picture, by name."""
    found = pictures_in(folder)
    if not found:
        raise DataError(f"{folder} holds no picture; those end in {', '.join(ENDINGS)}")
    names = [printable(str(path.relative_to(folder))) for path in found]
    pictures = [picture_file(path, name) for path, name in zip(found, names, strict=True)]
    return TableInputs(pictures, names=names, unit="picture")


def _listed(path: Path) -> TableInputs:
    """The files of a list, one a line: as they stand, or else beside the list."""
    return TableInputs([_beside(line.strip(), path.parent) for line in load_text(path).splitlines()], unit="line")


def _beside(name: str, folder: Path) -> str:
    if not name or path_of(name).is_file() or not (folder / name).is_file():
        return name
    return str(folder / name)


def _table(
    source: str,
    path: Path,
    trained: Sequence[Column] | None,
    columns: Sequence[Column] | None,
    find: Callable[[PictureFinder, Any, str], Picture],
) -> TableInputs:
    if columns is not None and len(columns) != 1:
        raise DataError(f"--columns names {len(columns)} columns; name the one of the pictures")
    choice = ColumnChoice(columns, trained, _guess)
    table = read_table(source, choice, replace(tabbed(source), binary=1))
    if not table.lines:
        raise DataError(f"{table.source} is empty: it holds no rows; give a file that does")
    finder = PictureFinder(None, path)
    pictures: list[Picture] = [find(finder, value, table.where(row)) for row, value in enumerate(table.columns[0])]
    note = f"{table.source}: reading {table.shown[0]} as picture" if choice.guessed else ""
    return TableInputs(pictures, note, unit="row")


def _guess(head: Head) -> Sequence[Column]:
    """The column of pictures by its name, or where there is no other."""
    if named := IMAGE.find(head.names):
        return named[:1]
    if len(head.names) == 1:
        return [1] if head.separated else head.names
    raise DataError(
        f"{head.where} has the columns {listed(head.names)}; say which is the picture: "
        f"--columns {brief(head.names[0])}"
    )
