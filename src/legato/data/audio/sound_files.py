"""Where sounds lie: files of a folder, members of a `.tar`, bytes in a table, arrays, or made by a function.

A table names its sounds: `a.flac` is looked for in `data.audio` (a folder or a `.tar`), or else beside the table, in
a `.tar` of the table's name (`train.tar` for `train.tsv`) and in `audio.tar` or `audio/`. A column of bytes, or of
objects with `bytes` and `path` or with `array` and `sampling_rate`, as the hub's library keeps sounds, holds them
itself.
"""

from __future__ import annotations

import io
import tarfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path, PurePath
from typing import Any, Final

import numpy as np

from legato.data.audio.sounds import (
    ENDINGS,
    MAX_BYTES,
    MAX_SAMPLES,
    Samples,
    check_rate,
    checked,
    read_sound,
    resampled,
    sound_extent,
)
from legato.data.sources.named_files import printable
from legato.errors import DataError, brief, suggest
from legato.input_files import near_path, open_file, path_of

UNNAMED: Final = "a sound"  # that is no file


@dataclass(frozen=True)
class Sound:
    """A sound that is read when it is needed: a file, a part of one, its bytes, or what makes it."""

    name: str
    path: Path | None = None
    start: int = 0  # where it begins in the file, as in a .tar …
    size: int = 0  # … and its bytes
    data: bytes | None = field(default=None, repr=False)
    make: Callable[[], Samples] | None = field(default=None, repr=False)  # (N,) at `rate`
    rate: int = 0

    @property
    def where(self) -> str:
        """For messages: the file that it is, or its name in what it is part of."""
        return f"{self.path}: {self.name}" if self.path is not None and self.start else str(self.path or self.name)

    def raw(self) -> bytes:
        """The bytes of the file."""
        if self.data is not None:
            return self.data
        if self.path is None:
            return self.name.encode()  # of one that is made, what names it
        with open_file(self.path) as file:
            file.seek(self.start)
            return file.read(self.size)

    def load(self, rate: int) -> Samples:
        """The sound at this rate, (N,), the mean of its channels; 1 is full scale."""
        if self.make is None:
            return read_sound(self.raw(), self.where, rate)
        return resampled(checked(self.make(), self.where), self.rate, rate)

    def seconds(self) -> float:
        """How long it is, as its file says, without decoding it; where that does not know, it is decoded."""
        if self.make is not None:
            return len(self.make()) / self.rate
        raw = self.raw()
        extent = sound_extent(raw, self.where)
        if extent is None:
            extent = len(read_sound(raw, self.where, 16_000)), 16_000
        return extent[0] / extent[1]


SOUND_TYPES: Final = (str, PurePath, bytes, tuple, Mapping, Sound)  # what may be given for a sound


def sound_file(path: Path, name: str | None = None) -> Sound:
    """A sound that is a file of its own."""
    if not path.is_file():
        near = near_path(path)
        hint = f"did you mean '{near}'?" if near is not None else "check the path"
        raise DataError(f"there is no sound {brief(path, 300)}; {hint}")
    size = path.stat().st_size
    if size > MAX_BYTES:
        raise DataError(f"{path} has {size:,} bytes, more than {MAX_BYTES:,}; cut it into pieces")
    return Sound(name or str(path), path, size=size)


def as_sound(given: Any) -> Sound:
    """What somebody gives for a sound: a file's name, its bytes, or samples with their rate.

    Samples are (N,), or (N, channels) as soundfile gives them; numbers of 16 bits and the like are made floats.

    >>> as_sound((np.zeros(8_000, np.float32), 16_000)).seconds()
    0.5
    """
    if isinstance(given, Sound):
        return given
    if isinstance(given, str | PurePath):
        path = path_of(str(given))
        if path.is_dir():
            raise DataError(f"{path} is a folder; give a sound in it")
        return sound_file(path, printable(str(given)))
    if isinstance(given, bytes):
        return Sound(UNNAMED, data=given)
    if isinstance(given, Mapping):
        return _of_entries(given, UNNAMED)
    if isinstance(given, tuple) and len(given) == 2:
        return sound_of_samples(*given, UNNAMED)
    raise DataError(f"{type(given).__name__} is no sound; give a file's name, its bytes, or (samples, rate)")


def sound_of_samples(samples: Any, rate: Any, name: str) -> Sound:
    """Samples (N,) or (N, channels) at a rate."""
    try:
        array = np.asarray(samples)
    except ValueError:  # lists of different lengths
        array = np.asarray(None)
    if array.ndim not in (1, 2) or array.dtype.kind not in "iuf":
        raise DataError(
            f"{name}: samples are numbers (N,) or (N, channels), not {array.dtype} of shape {array.shape}"
        )
    if array.ndim == 2 and array.shape[0] < array.shape[1]:
        raise DataError(f"{name}: samples of shape {array.shape} have more channels than samples; turn them around")
    if len(array) > MAX_SAMPLES:
        raise DataError(f"{name} has {len(array):,} samples, more than {MAX_SAMPLES:,}; cut it into pieces")
    rate = check_rate(rate, name)
    if array.dtype.kind in "iu":
        bits = 8 * array.dtype.itemsize
        middle = 2.0 ** (bits - 1)
        array = (array.astype(np.float64) - (middle if array.dtype.kind == "u" else 0)) / middle
    mono = np.ascontiguousarray(array if array.ndim == 1 else array.mean(1), np.float32)
    checked(mono, name)
    return Sound(name, make=lambda: mono, rate=rate)


def _of_entries(value: Mapping[str, Any], where: str) -> Sound:
    """As the hub's library keeps it: an array, bytes, or a path."""
    if value.get("array") is not None:
        return sound_of_samples(value["array"], value.get("sampling_rate"), where)
    if value.get("bytes") is not None:
        if not isinstance(value["bytes"], bytes):
            raise DataError(f"{where}: 'bytes' is {brief(repr(value['bytes']))}, and no bytes; give a path")
        return Sound(where, data=value["bytes"])
    if value.get("path"):
        return as_sound(str(value["path"]))
    raise DataError(f"{where}: there is no sound; give bytes, a path, or an array with its sampling_rate")


def sounds_in(folder: Path) -> list[Path]:
    """The sounds of a folder and of those in it, by name; what begins with a dot is left out."""
    found = (path for path in folder.rglob("*") if path.suffix.lower() in ENDINGS and path.is_file())
    return sorted(path for path in found if not any(part.startswith(".") for part in path.relative_to(folder).parts))


class SoundFinder:
    """From what a table says of a sound to the sound."""

    def __init__(self, audio: Path | None, table: Path | None) -> None:
        """`audio` is a folder or a `.tar`; left out, they are looked for beside the `table`."""
        self.folders: list[Path] = []
        self.members: dict[str, Sound] = {}
        self.place = audio or (table.parent if table is not None else Path.cwd())
        if audio is not None:
            if not audio.exists():
                raise DataError(f"data.audio={audio}: there is no such folder or .tar; check the path")
            self._add(audio)
        elif table is not None:
            stem = table.name.partition(".")[0]
            for place in (self.place, *(self.place / name for name in (f"{stem}.tar", "audio.tar", "audio", stem))):
                if place.is_dir() or (place.suffix == ".tar" and place.is_file()):
                    self._add(place)

    def _add(self, place: Path) -> None:
        if place.is_dir():
            self.folders.append(place)
        else:
            self.members = {**members_of(place), **self.members}

    def find(self, value: Any, where: str) -> Sound:
        """The sound that stands in a row; `where` that is (table and line), for messages."""
        if isinstance(value, Mapping) and (value.get("array") is not None or value.get("bytes") is not None):
            return _of_entries(value, where)
        if isinstance(value, Mapping):
            value = value.get("path")
        if isinstance(value, bytes):
            return Sound(where, data=value)
        if not isinstance(value, str) or not value.strip():
            reason = "there is no sound" if value in (None, "") else f"{brief(repr(value))} names no sound"
            raise DataError(f"{where}: {reason}; give a file's name, or remove the row")
        name = value.strip()
        if name in self.members:
            return self.members[name]
        for folder in self.folders or [Path()]:
            path = path_of(name, folder)
            if path.is_file():
                return sound_file(path, name)
        if self.members:
            hint = suggest(name, self.members)
            raise DataError(f"{where}: there is no sound '{brief(name)}' in {self.place}; {hint}")
        first = (self.folders or [Path()])[0]
        raise DataError(
            f"{where}: there is no sound {first / brief(name)}; set data.audio to the folder or .tar that it is in"
        )


def members_of(path: Path) -> dict[str, Sound]:
    """The sounds in a `.tar`, by name."""
    try:
        with open_file(path) as file, tarfile.open(fileobj=file, mode="r:") as archive:
            found = {
                member.name.removeprefix("./"): Sound(member.name, path, member.offset_data, member.size)
                for member in archive
                if member.isfile() and Path(member.name).suffix.lower() in ENDINGS
            }
    except (tarfile.TarError, EOFError, io.UnsupportedOperation) as problem:
        raise DataError(
            f"{path} cannot be read as a .tar ({brief(problem, 100)}); unpack it, and give the folder"
        ) from None
    if not found:
        raise DataError(f"{path} holds no sound; those end in {', '.join(ENDINGS)}")
    return found
