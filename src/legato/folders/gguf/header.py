"""What stands before the numbers in a GGUF file: what it says of its model, and where each tensor lies.

    "GGUF", version                     4 bytes each, the lowest byte first, as in all that follows
    tensors, entries                    how many there are, 8 bytes each
    key, type, value                    of every entry; a text is its length and its bytes
    name, sizes, type, offset           of every tensor; the sizes begin with the innermost one
    …                                   up to a multiple of `general.alignment`, from where offsets count: the numbers

(https://github.com/ggml-org/ggml/blob/master/docs/gguf.md)

All of it may be somebody's mistake, or worse: counts and lengths are compared with what the file has before anything
is read or made of them. The package `gguf` has a reader, too, which makes an array for every token of a vocabulary
(docs/log.md has what that takes).
"""

from __future__ import annotations

import math
import os
from dataclasses import dataclass
from io import BufferedReader
from pathlib import Path
from typing import Any, Final

import numpy as np

from legato.errors import FolderError, brief
from legato.folders.weights import LFS
from legato.input_files import open_file
from legato.models.building import MOST_TENSORS
from legato.models.published.entries import LARGEST

MAGIC: Final = b"GGUF"
VERSIONS: Final = (
    2,
    3,
)  # the first had shorter counts; the third is the second, also for machines of the other order
MAX_HEADER: Final = 1 << 28  # bytes; large vocabularies take a twentieth of it
MAX_ENTRIES: Final = 1 << 16
MAX_ITEMS: Final = 1 << 22  # of all arrays; the largest vocabularies, with merges and types, have a third of it
MAX_NAME: Final = 1 << 16  # bytes of a key or of a tensor's name
MAX_SIZES: Final = 4  # of a tensor
DEFAULT_ALIGNMENT: Final = 32

TEXT, ARRAY, FLOAT = 8, 9, 6
NUMBERS: Final = {0: "u1", 1: "i1", 2: "u2", 3: "i2", 4: "u4", 5: "i4", 6: "f4", 7: "?", 10: "u8", 11: "i8", 12: "f8"}
NEEDED: Final = object()  # the default of an entry that has to be there

Bytes = np.ndarray[Any, np.dtype[np.uint8]]


@dataclass(frozen=True)
class TensorInfo:
    """Where a tensor lies, and what it is."""

    name: str
    shape: tuple[int, ...]  # outermost first, as everywhere here
    kind: int  # the number of its type (blocks.py)
    offset: int  # from the first tensor's byte


@dataclass(frozen=True)
class Header:
    """What a file says of its model."""

    path: Path
    entries: dict[str, Any]  # of arrays, texts are a list and numbers a tuple
    tensors: dict[str, TensorInfo]
    start: int  # the first tensor's byte
    alignment: int
    size: int  # of the file
    stamp: tuple[int, ...]  # what tells the file from one that takes its place

    def raw(self, tensor: TensorInfo, size: int, skipped: int = 0) -> Bytes:
        """So many bytes of a tensor, behind those that are skipped."""
        with open_file(self.path, error=FolderError) as file:
            if _stamp(file) != self.stamp:
                raise FolderError(f"{self.path} was written over while it was read; begin again")
            file.seek(self.start + tensor.offset + skipped)
            found = np.fromfile(file, np.uint8, size)
        if len(found) != size:
            raise FolderError(f"{self.path} ends in the middle of '{tensor.name}'; fetch or copy it again")
        return found

    # --- single entries, of the type that they should have ----------------------------------------------

    def size_of(self, key: str, default: Any = NEEDED) -> Any:
        """A number of layers, heads, units or tokens. Where there is one for each layer, they are all the same."""
        found = self._entry(key, default)
        if isinstance(found, tuple) and found:
            if len(set(found)) > 1:
                raise FolderError(f"{self.path}: '{key}' differs from layer to layer, which Legato does not have")
            found = found[0]
        fits = isinstance(found, int) and not isinstance(found, bool) and 1 <= found <= LARGEST
        return self._checked(key, found, default, fits, f"a whole number from 1 to {LARGEST:,}")

    def number(self, key: str, default: Any = NEEDED) -> Any:
        found = self._entry(key, default)
        fits = isinstance(found, int | float) and not isinstance(found, bool) and math.isfinite(found)
        return self._checked(key, found, default, fits, "a number")

    def flag(self, key: str, default: Any = NEEDED) -> Any:
        found = self._entry(key, default)
        return self._checked(key, found, default, isinstance(found, bool), "true or false")

    def text(self, key: str, default: Any = NEEDED) -> Any:
        found = self._entry(key, default)
        return self._checked(key, found, default, isinstance(found, str), "a text")

    def texts(self, key: str) -> list[str]:
        found = self._entry(key, NEEDED)
        return self._checked(key, found, NEEDED, isinstance(found, list), "a list of texts")

    def numbers(self, key: str, count: int) -> list[Any]:
        """As many numbers as there are tokens, mostly."""
        found = self._entry(key, NEEDED)
        fits = isinstance(found, tuple) and len(found) == count and all(map(math.isfinite, found))
        return list(self._checked(key, found, NEEDED, fits, f"a list of {count:,} numbers"))

    def _entry(self, key: str, default: Any) -> Any:
        if key not in self.entries and default is NEEDED:
            raise FolderError(f"{self.path} lacks '{key}', without which its model cannot be made")
        return self.entries.get(key, default)

    def _checked(self, key: str, found: Any, default: Any, fits: bool, expected: str) -> Any:
        if not fits and (key in self.entries or found is not default):
            shown = f"a list of {len(found):,}" if isinstance(found, list | tuple) else f"'{brief(found)}'"
            raise FolderError(f"{self.path}: '{key}' should be {expected}, not {shown}")
        return found


def is_gguf(path: Path) -> bool:
    """Whether a file is a GGUF file, by its name or by how it begins."""
    if path.suffix.lower() == ".gguf":
        return True
    with open_file(path, error=FolderError) as file:
        return file.read(len(MAGIC)) == MAGIC


def read_header(path: Path) -> Header:
    """All that stands before the numbers; nothing of it is believed that the file's size speaks against."""
    with open_file(path, error=FolderError) as file:
        return _Reader(file, path).header()


def _stamp(file: BufferedReader) -> tuple[int, ...]:
    found = os.fstat(file.fileno())
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns


class _Reader:
    def __init__(self, file: BufferedReader, path: Path) -> None:
        self.file, self.path = file, path
        self.size = os.fstat(file.fileno()).st_size
        self.left = min(self.size, MAX_HEADER)  # bytes that a header may still have
        self.items = 0  # of arrays, so far

    def header(self) -> Header:
        beginning = self.file.read(len(LFS))
        self.file.seek(0)
        if beginning == LFS:
            raise self._damaged("it is Git LFS's pointer to the file, not the file; fetch it with: git lfs pull")
        if beginning[: len(MAGIC)] != MAGIC:
            raise self._damaged(f"it does not begin with {MAGIC.decode()}")
        self._take(len(MAGIC))
        version = self._whole(4)
        if version not in VERSIONS:
            other = int.from_bytes(version.to_bytes(4, "big"), "little") in VERSIONS
            why = "it is for machines whose bytes have the other order" if other else f"it is of version {version}"
            raise self._damaged(f"{why}; Legato reads versions 2 and 3, lowest byte first")
        tensors, entries = self._whole(8), self._whole(8)
        for count, what, most in ((tensors, "tensors", MOST_TENSORS), (entries, "entries", MAX_ENTRIES)):
            if count > most:
                raise self._damaged(f"it says that it holds {count:,} {what}; Legato reads up to {most:,}")
        found = self._entries(entries)
        infos = self._tensors(tensors)
        alignment = found.get("general.alignment", DEFAULT_ALIGNMENT)
        if not isinstance(alignment, int) or alignment < 1 or alignment & (alignment - 1) or alignment > 1 << 20:
            raise self._damaged(f"'general.alignment' is {brief(alignment)}, which is no power of two")
        start = -(-self.file.tell() // alignment) * alignment
        return Header(self.path, found, infos, start, alignment, self.size, _stamp(self.file))

    def _entries(self, count: int) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for _ in range(count):
            key = self._text("a key", MAX_NAME)
            if key in found:
                raise self._damaged(f"'{brief(key)}' is there twice")
            found[key] = self._value(key, self._whole(4))
        return found

    def _tensors(self, count: int) -> dict[str, TensorInfo]:
        found: dict[str, TensorInfo] = {}
        for _ in range(count):
            name = self._text("a tensor's name", MAX_NAME)
            if name in found:
                raise self._damaged(f"the tensor '{brief(name)}' is there twice")
            sizes = self._whole(4)
            if not 1 <= sizes <= MAX_SIZES:
                raise self._damaged(f"the tensor '{brief(name)}' has {sizes:,} sizes; 1 to {MAX_SIZES} are usual")
            shape = [self._whole(8) for _ in range(sizes)]
            while len(shape) > 1 and shape[-1] == 1:  # some write all four sizes of every tensor
                shape.pop()
            found[name] = TensorInfo(name, tuple(reversed(shape)), self._whole(4), self._whole(8))
        return found

    def _value(self, key: str, kind: int) -> Any:
        if kind == TEXT:
            return self._text(f"'{brief(key)}'", self.left)
        if kind in NUMBERS:
            found = self._numbers(kind, 1)[0]
            # Its shortest name: 1e-5 is not 9.999999747378752e-06, as which 4 bytes hold it.
            return float(str(found)) if kind == FLOAT else found.item()
        if kind != ARRAY:
            raise self._damaged(f"'{brief(key)}' is of a type {kind:,} that is unknown")
        inner, count = self._whole(4), self._whole(8)
        if inner not in (TEXT, *NUMBERS):
            raise self._damaged(f"'{brief(key)}' is an array of a type {inner:,} that is unknown, or of arrays")
        if count > self.left:
            raise self._cut()
        self.items += count
        if self.items > MAX_ITEMS:
            raise self._damaged(f"its arrays have more than {MAX_ITEMS:,} texts and numbers, up to '{brief(key)}'")
        return self._texts(key, count) if inner == TEXT else tuple(self._numbers(inner, count).tolist())

    def _numbers(self, kind: int, count: int) -> Any:
        numbers = np.dtype(NUMBERS[kind]).newbyteorder("<")
        return np.frombuffer(self._take(count * numbers.itemsize), numbers)

    def _texts(self, key: str, count: int) -> list[str]:
        """Hundreds of thousands, so this is `_text` written out."""
        read, left = self.file.read, self.left
        found = []
        for _ in range(count):
            size = int.from_bytes(read(8), "little")
            left -= 8 + size
            if left < 0:
                raise self._cut()
            found.append(read(size))
        self.left = left
        try:
            return [text.decode("utf-8") for text in found]
        except UnicodeDecodeError:
            raise self._damaged(f"'{brief(key)}' holds what is no UTF-8 text") from None

    def _text(self, what: str, most: int) -> str:
        size = self._whole(8)
        if size > most:
            raise (
                self._cut()
                if size > self.left
                else self._damaged(f"{what} has {size:,} bytes, up to {most:,} are read")
            )
        try:
            return self._take(size).decode("utf-8")
        except UnicodeDecodeError:
            raise self._damaged(f"{what} holds what is no UTF-8 text") from None

    def _whole(self, size: int) -> int:
        return int.from_bytes(self._take(size), "little")

    def _take(self, size: int) -> bytes:
        if size > self.left:
            raise self._cut()
        self.left -= size
        found = self.file.read(size)
        if len(found) != size:
            raise self._cut()
        return found

    def _cut(self) -> FolderError:
        if self.size > MAX_HEADER:
            return self._damaged(f"what it says of itself is longer than {MAX_HEADER:,} bytes")
        return self._damaged(f"it ends in the middle of what it says of itself, at {self.size:,} bytes")

    def _damaged(self, why: str) -> FolderError:
        again = "" if "fetch" in why else "; fetch or copy it again"
        return FolderError(f"{self.path} cannot be read as GGUF: {why}{again}")
