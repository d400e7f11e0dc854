"""Where pictures lie: files of a folder, members of a `.tar`, bytes in a table, or drawn by a function.

A table names its pictures: `dog.jpg` is looked for in `data.images` (a folder or a `.tar`), or else beside the
table, in a `.tar` of the table's name (`train.tar` for `train.jsonl`) and in `images.tar` or `images/`. A column of
bytes, or of objects with `bytes` and `path`, as the hub's library keeps pictures, holds them itself.
"""

from __future__ import annotations

import io
import tarfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path, PurePath
from typing import Any, Final

import numpy as np

from legato.data.image.pictures import ENDINGS, MAX_BYTES, decoded, picture_size, read_picture
from legato.data.sources.named_files import printable
from legato.errors import DataError, brief, suggest
from legato.input_files import near_path, open_file, path_of
from legato.registry import require_extra


def _pillow() -> tuple[type, ...]:
    """Its class of pictures, where it is installed."""
    try:
        from PIL.Image import Image
    except ImportError:
        return ()
    return (Image,)


UNNAMED: Final = "a picture"  # that is no file


@dataclass(frozen=True)
class Picture:
    """A picture that is read when it is needed: a file, a part of one, its bytes, or what draws it."""

    name: str
    path: Path | None = None
    start: int = 0  # where it begins in the file, as in a .tar …
    size: int = 0  # … and its bytes
    data: bytes | None = field(default=None, repr=False)
    draw: Callable[[], Any] | None = field(default=None, repr=False)

    @property
    def where(self) -> str:
        """For messages: the file that it is, or its name in what it is part of."""
        return f"{self.path}: {self.name}" if self.path is not None and self.start else str(self.path or self.name)

    def raw(self) -> bytes:
        """The bytes of the file."""
        if self.data is not None:
            return self.data
        if self.path is None:
            return self.name.encode()  # of one that is drawn, what names it
        with open_file(self.path) as file:
            file.seek(self.start)
            return file.read(self.size)

    def load(self) -> Any:
        """The picture: Pillow's `Image` of mode RGB, or where it is drawn its pixels (H, W, 3)."""
        return self.draw() if self.draw is not None else read_picture(self.raw(), self.where)

    def extent(self) -> tuple[int, int]:
        """Width and height in pixels, without unpacking them."""
        if self.draw is None:
            return picture_size(self.raw(), self.where)
        drawn = self.draw()
        return (drawn.shape[1], drawn.shape[0]) if isinstance(drawn, np.ndarray) else drawn.size


PICTURE_TYPES: Final = (str, PurePath, bytes, np.ndarray, Picture, *_pillow())  # what may be given for a picture


def picture_file(path: Path, name: str | None = None) -> Picture:
    """A picture that is a file of its own."""
    if not path.is_file():
        near = near_path(path)
        hint = f"did you mean '{near}'?" if near is not None else "check the path"
        raise DataError(f"there is no picture {brief(path, 300)}; {hint}")
    size = path.stat().st_size
    if size > MAX_BYTES:
        raise DataError(f"{path} has {size:,} bytes, more than any picture; give one")
    return Picture(name or str(path), path, size=size)


def as_picture(given: Any) -> Picture:
    """What somebody gives for a picture: a file's name, its bytes, Pillow's `Image`, or pixels (H, W, 3)."""
    if isinstance(given, Picture):
        return given
    if isinstance(given, str | PurePath):
        return _named(given)
    if isinstance(given, bytes):
        return Picture(UNNAMED, data=given)
    if isinstance(given, np.ndarray):
        if given.dtype != np.uint8 or given.ndim not in (2, 3) or given.shape[2:] not in ((), (3,), (4,)):
            raise DataError(
                f"pixels are (height, width, 3) bytes, or grey (height, width), not {given.dtype} of shape "
                f"{given.shape}"
            )
        if given.size == 0:
            raise DataError(f"pixels of shape {given.shape} are no picture")
        if given.shape[2:] == (3,):
            return Picture(UNNAMED, draw=lambda: given)
        given = require_extra("vision", "PIL.Image").fromarray(given)
    if not isinstance(given, PICTURE_TYPES):
        raise DataError(
            f"{brief(repr(given))} is no picture; give a file's name, its bytes, pixels or Pillow's Image"
        )
    return Picture(UNNAMED, draw=lambda: decoded(given, UNNAMED))


def _named(given: str | PurePath) -> Picture:
    """The file that somebody names."""
    path = path_of(str(given))
    if path.is_dir():
        raise DataError(f"{path} is a folder; give a picture in it, or --file {path} for all of them")
    if reads_as_text(str(given)):
        raise DataError(
            f"'{brief(given)}' is no file, and this model reads pictures, not text; give a picture's name"
        )
    return picture_file(path, printable(str(given)))


def reads_as_text(given: str) -> bool:
    """Whether nobody means a file by it: there is none of that name or a near one, and it ends like no picture."""
    path = path_of(given)
    return not path.exists() and path.suffix.lower() not in ENDINGS and near_path(path) is None


def name_of(given: Any) -> str:
    """What a picture that somebody gives is called."""
    if isinstance(given, Picture):
        return given.name
    return printable(str(given)) if isinstance(given, str | PurePath) else UNNAMED


def pictures_in(folder: Path) -> list[Path]:
    """The pictures of a folder and of those in it, by name; what begins with a dot is left out."""
    found = (path for path in folder.rglob("*") if path.suffix.lower() in ENDINGS and path.is_file())
    return sorted(path for path in found if not any(part.startswith(".") for part in path.relative_to(folder).parts))


class PictureFinder:
    """From what a table says of a picture to the picture."""

    def __init__(self, images: Path | None, table: Path | None) -> None:
        """`images` is a folder or a `.tar`; left out, they are looked for beside the `table`."""
        self.folders: list[Path] = []
        self.members: dict[str, Picture] = {}
        self.told = str(images or (table.parent if table is not None else Path.cwd()))
        if images is not None:
            if not images.exists():
                raise DataError(f"data.images={images}: there is no such folder or .tar; check the path")
            self._add(images)
        elif table is not None:
            stem = table.name.partition(".")[0]
            near = [table.parent, *(table.parent / name for name in (f"{stem}.tar", "images.tar", "images", stem))]
            for place in near:
                if place.is_dir() or (place.suffix == ".tar" and place.is_file()):
                    self._add(place)

    def _add(self, place: Path) -> None:
        if place.is_dir():
            self.folders.append(place)
        else:
            self.members = {**members_of(place), **self.members}

    @cached_property
    def folders_inside(self) -> dict[str, list[str]]:
        """The members of `.tar` files by the folders that they are in."""
        found: dict[str, list[str]] = {}
        for member in self.members:
            found.setdefault(member.rpartition("/")[0], []).append(member)
        return found

    def find(self, value: Any, where: str) -> Picture:
        """The picture that stands in a row; `where` that is, for messages."""
        if isinstance(value, Mapping):
            inner = value.get("bytes")
            value = value.get("path") if inner is None else inner
        if isinstance(value, bytes):
            return Picture(where, data=value)
        if isinstance(value, list) and len(value) > 1:
            raise DataError(f"{where}: there are {len(value)} pictures, and a row has one; make a row for each")
        if not isinstance(value, str) or not value.strip():
            told = "there is no picture" if value in (None, "") else f"{brief(repr(value))} names no picture"
            raise DataError(f"{where}: {told}; give a file's name, or remove the row")
        name = value.strip()
        if name in self.members:
            return self.members[name]
        for folder in self.folders or [Path()]:
            path = folder / name
            if path.is_file():
                return picture_file(path, name)
        if self.members:
            raise DataError(
                f"{where}: there is no picture '{brief(name)}' in {self.told}; {suggest(name, self.members)}"
            )
        raise DataError(
            f"{where}: there is no picture {(self.folders or [Path()])[0] / brief(name)}; set data.images to the "
            "folder or .tar that it is in"
        )


def members_of(path: Path) -> dict[str, Picture]:
    """The pictures in a `.tar`, by name."""
    try:
        with open_file(path) as file, tarfile.open(fileobj=file, mode="r:") as archive:
            found = {
                member.name.removeprefix("./"): Picture(member.name, path, member.offset_data, member.size)
                for member in archive
                if member.isfile() and Path(member.name).suffix.lower() in ENDINGS
            }
    except (tarfile.TarError, EOFError, io.UnsupportedOperation) as problem:
        packed = "it is compressed" if path.suffix in (".gz", ".tgz", ".bz2", ".xz") else brief(problem, 100)
        raise DataError(f"{path} cannot be read as a .tar ({packed}); unpack it, and give the folder") from None
    if not found:
        raise DataError(f"{path} holds no picture; those end in {', '.join(ENDINGS)}")
    return found
