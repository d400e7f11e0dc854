"""Clips: frames one after the other, of an animated GIF or WebP, of a folder of pictures, of a list, or drawn.

A model reads so many frames of each, evenly from the whole: of n frames those in the middle of `count` equal parts.
Where a clip has fewer, some come again, so a picture that does not move is a clip as well.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import Any

import numpy as np

from legato.data.image.picture_files import Picture, PictureFinder, as_picture, picture_file
from legato.data.image.pictures import ENDINGS, evenly, read_frames
from legato.data.sources.named_files import printable
from legato.errors import DataError
from legato.input_files import path_of


@dataclass(frozen=True)
class PictureClip(Picture):
    """A picture with frames: those in its file, its `parts`, or what it draws, (N, H, W, 3)."""

    parts: tuple[Picture, ...] = ()

    def raw(self) -> bytes:
        return b"".join(part.raw() for part in self.parts) if self.parts else super().raw()

    def load(self) -> Any:
        """The frame in the middle."""
        return next(self.frames(1))

    def frames(self, count: int) -> Iterator[Any]:
        """So many frames, evenly from the whole: Pillow's `Image` of mode RGB, or pixels (H, W, 3)."""
        if self.draw is not None:
            drawn = self.draw()
            several = drawn if isinstance(drawn, np.ndarray) and drawn.ndim == 4 else [drawn]
            return (several[number] for number in evenly(len(several), count))
        if self.parts:
            return (self.parts[number].load() for number in evenly(len(self.parts), count))
        return read_frames(self.raw(), self.where, count)


def as_clip(given: Any) -> PictureClip:
    """What somebody gives for a clip: a file's name, a folder of frames, some pictures, or pixels (N, H, W, 3)."""
    if isinstance(given, PictureClip):
        return given
    if isinstance(given, str | PurePath) and path_of(str(given)).is_dir():
        return folder_clip(path_of(str(given)), printable(str(given)))
    if isinstance(given, list | tuple):
        return _joined([as_picture(part) for part in given], "the clip")
    if isinstance(given, np.ndarray) and given.ndim == 4:
        if given.dtype != np.uint8 or given.shape[3] != 3 or not given.size:
            raise DataError(f"a clip is (frames, height, width, 3) bytes, not {given.dtype} of shape {given.shape}")
        return PictureClip("a clip", draw=lambda: given)
    return PictureClip(**vars(as_picture(given)))


def folder_clip(folder: Path, name: str | None = None) -> PictureClip:
    """The pictures of a folder as frames, in the order of the numbers in their names."""
    found = (path for path in folder.iterdir() if _is_shown(path) and path.is_file())
    files = sorted((path for path in found if path.suffix.lower() in ENDINGS), key=lambda path: _order(path.name))
    if not files:
        raise DataError(f"{folder} holds no frames; those end in {', '.join(ENDINGS)}")
    return _clip([picture_file(path) for path in files], name or str(folder))


def clips_in(folder: Path) -> list[PictureClip]:
    """The clips of a folder by name: files of pictures, and folders of frames."""
    found = []
    for path in sorted(path for path in folder.iterdir() if _is_shown(path)):
        if path.is_dir():
            found.append(folder_clip(path, path.name))
        elif path.suffix.lower() in ENDINGS:
            found.append(PictureClip(**vars(picture_file(path, path.name))))
    return found


def find_clip(finder: PictureFinder, value: Any, where: str) -> PictureClip:
    """The clip that stands in a row of a table: a file, a folder of frames, or a list of pictures."""
    if isinstance(value, list):
        return _joined([finder.find(part, where) for part in value], f"{where}: the clip")
    name = value.strip().rstrip("/") if isinstance(value, str) else ""
    if name:
        inside = finder.folders_inside.get(name)
        if inside:
            return _clip([finder.members[member] for member in sorted(inside, key=_order)], name)
        for folder in finder.folders or [Path()]:
            if (folder / name).is_dir():
                return folder_clip(folder / name, name)
    return PictureClip(**vars(finder.find(value, where)))


def _joined(parts: list[Picture], what: str) -> PictureClip:
    if not parts:
        raise DataError(f"{what} has no frames; give at least one")
    return _clip(parts, f"{parts[0].name} … {parts[-1].name}")


def _clip(parts: list[Picture], name: str) -> PictureClip:
    size = sum(part.size if part.data is None else len(part.data) for part in parts)
    return PictureClip(name, size=size, parts=tuple(parts))


def _is_shown(path: Path) -> bool:
    return not path.name.startswith(".")


def _order(name: str) -> list[tuple[int, str]]:
    """By the numbers in a name: frame 2 comes before frame 10."""
    parts = re.split(r"(\d+)", name)
    return [(int(part), "") if part.isdecimal() and part.isascii() else (-1, part) for part in parts]
