"""What is in a file: its bytes, unpacked if it is a gzip, and its text.

`\\r\\n` and `\\r` become `\\n` and a byte-order mark is dropped: the model never sees either.

Whatever is wrong with a file is said here, in one line that names it: it is missing, a folder, not for this user,
empty, binary, in another encoding, or has a line so long that it must be something else.

What was packed is unpacked no further than any text goes. A few kilobytes can hold petabytes: a gzip or a zip of
zeros, a parquet file whose one long text is named a billion times. Deflate makes text 2 to 10 times smaller, and
tables that repeat themselves perhaps 100 times; 1,032 times is what it does to zeros. So what is small may be
anything, and what is large may be so many times as large as the file. What is much is counted before any of it is
kept, so that refusing it takes no memory either.
"""

from __future__ import annotations

import codecs
import contextlib
import gzip
import os
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Final

from legato import memory
from legato.errors import DataError, brief
from legato.input_files import near_path, open_file, path_of, read_bytes
from legato.schema import is_text

MAX_LINE: Final = 10_000_000
SMALL = 1 << 26  # bytes that anything may become
HELD = 1 << 28  # bytes that are kept before it is known how many there are
RATIO: Final = 200
BLOCK: Final = 1 << 20
VALUE: Final = 16  # bytes that a value of a table takes at least, once it is read
SPLITS: Final = ("train", "valid", "test")
PACKED: Final = {  # by what files of a kind begin with, which no text does
    b"PK\x03\x04": "a zip; unpack it, and name a file that was in it",
    b"\x1f\x8b\x08": "a gzip; unpack it, or give it a name that ends in .gz",
}


@dataclass(frozen=True)
class FileOptions:
    """How a source is read, whatever is in it."""

    root: str | None = None  # folder that relative names lie in
    format: str = "auto"  # of tables: csv, tsv, jsonl or parquet, where a file's ending does not say it
    encoding: str = "utf-8"  # of text files
    max_line: int = MAX_LINE  # characters of a line; a longer one is usually a file of another kind; 0 accepts any
    split: str = "train"  # the part of a dataset on the hub; a file is always whole
    binary: int = 0  # of a table's columns that are read, the first so many may hold bytes, as pictures are kept


def resolve_path(source: str, root: str | None = None) -> Path:
    """The path that `source` names; a relative one lies under `root` when there is a root."""
    return path_of(source, root)


def no_file(path: Path) -> DataError:
    near = near_path(path)
    if near is not None:
        return DataError(f"there is no file {path}; did you mean '{near}'?")
    return DataError(f"there is no file {path}; check the path, or set data.root to the folder it is in")


def load_bytes(path: Path) -> bytes:
    """What is in a file, unpacked if it is a gzip."""
    if path.suffix.lower() == ".gz":
        with open_file(path) as file:
            data = gunzip(path, file, os.fstat(file.fileno()).st_size)
    else:
        data = read_bytes(path)
    if not data:
        raise DataError(f"{path} is empty; give a file that holds text")
    return data


def load_text(path: Path, encoding: str = "utf-8", max_line: int = MAX_LINE) -> str:
    """The text of a file, with `\\n` for every kind of newline."""
    text = unify_newlines(decode(path, load_bytes(path), encoding))
    _check_lines(path, text, max_line)
    return text


def unify_newlines(text: str) -> str:
    return text.replace("\r\n", "\n").replace("\r", "\n") if "\r" in text else text


def decode(path: Path, data: bytes, encoding: str) -> str:
    """The text that the bytes of a file are in this encoding, without its byte-order mark; `path` is for messages."""
    try:
        codec = codecs.lookup(encoding).name
    except (LookupError, ValueError, OSError, ImportError):  # a codec's name is looked up as a module's
        raise DataError(
            f"there is no encoding '{brief(encoding)}'; set data.encoding to utf-8, latin-1, utf-16, …"
        ) from None
    packed = next((kind for start, kind in PACKED.items() if data.startswith(start)), None)
    if packed is not None:
        raise DataError(f"{path} is {packed}")
    # Wide encodings hold zero bytes by nature; in any other a zero byte means that this is no text.
    if not codec.startswith(("utf-16", "utf-32")):
        zero = data.find(b"\0")
        if zero >= 0:
            wide = data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE))
            advice = "it looks like UTF-16: set data.encoding=utf-16" if wide else "give a text file"
            raise DataError(f"{path} is binary: there is a zero byte at offset {zero}; {advice}")
    try:
        text = data.decode(encoding)
    except UnicodeDecodeError as problem:
        line = data.count(b"\n", 0, problem.start) + 1
        raise DataError(
            f"{path}, line {line}: the byte at offset {problem.start} is not {encoding}; "
            "set data.encoding to what the file is in, such as data.encoding=latin-1"
        ) from None
    except (LookupError, ValueError):  # a codec that is none of text, such as 'hex', or that says no more
        raise DataError(f"{path}: '{encoding}' is not an encoding of text; set data.encoding=utf-8") from None
    if codec != "utf-8" and not is_text(text):  # some codecs spell half characters
        raise DataError(
            f"{path} holds half a surrogate pair in {encoding}, which is no text; set data.encoding=utf-8"
        )
    return text.removeprefix("\ufeff")


def _check_lines(path: Path, text: str, max_line: int) -> None:
    """Refuse a line of more than `max_line` characters, in a few looks however long the text is."""
    start = 0
    while max_line and len(text) - start > max_line:
        newline = text.rfind("\n", start, start + max_line + 1)
        if newline < 0:
            line = text.count("\n", 0, start) + 1
            end = text.find("\n", start)
            length = (len(text) if end < 0 else end) - start
            raise DataError(
                f"{path}, line {line}: {length} characters in one line, more than {max_line}; "
                "set data.max_line=0 to accept it"
            )
        start = newline + 1


# --- unpacking ----------------------------------------------------------------------------------------


class Budget:
    """How many bytes may come of a file of this size."""

    def __init__(self, where: str, packed: int, small: int | None = None) -> None:
        self.where, self.packed = where, packed
        self.left = self.most = (SMALL if small is None else small) + RATIO * packed
        free = memory.available()
        if free is not None and free < self.most:
            self.left = self.most = free

    def take(self, size: int) -> None:
        """Count what was unpacked, or is about to be."""
        self.check(size)
        self.left -= size

    def check(self, size: int) -> None:
        """Refuse to unpack so much more."""
        if size > self.left:
            raise self.exceeded(self.most, self.packed)

    def exceeded(self, most: int, packed: int) -> DataError:
        return DataError(
            f"{self.where} becomes more than {memory.in_words(most)} of {memory.in_words(packed)} when it is "
            "unpacked, which no text does, or memory does not hold; unpack it yourself if it is meant so"
        )

    def read(self, file: Any) -> bytes:
        """All that an open file gives."""
        parts = []
        while part := file.read(BLOCK):
            self.take(len(part))
            parts.append(part)
        return b"".join(parts)


def gunzip(path: Path, file: BinaryIO, size: int) -> bytes:
    """What a gzip of `size` bytes holds."""
    budget, parts, count = Budget(str(path), size), list[bytes](), 0
    with not_damaged(path), gzip.GzipFile(fileobj=file) as packed:
        while part := packed.read(BLOCK):
            budget.take(len(part))
            count += len(part)
            if count > HELD + RATIO * file.tell():  # by far too much already, however long the rest is
                raise budget.exceeded(count, file.tell())
            parts = [*parts, part] if count <= HELD else []
        if count > HELD:
            packed.seek(0)
            parts = [packed.read(count)]  # at once, since joining parts takes as much again
        return b"".join(parts)


@contextlib.contextmanager
def not_damaged(path: Path) -> Iterator[None]:
    """Say in one line what is wrong with a gzip that is read inside."""
    try:
        yield
    except EOFError:
        raise DataError(f"{path} is truncated: its gzip stream does not end; copy the file again") from None
    except (gzip.BadGzipFile, zlib.error) as problem:
        raise DataError(f"{path} is not a gzip file, or is damaged ({problem}); copy it again or rename it") from None
    except OSError as problem:
        raise DataError(f"{path} cannot be read: {problem.strerror or problem}") from None


def lines_of(file: Any, where: str, max_bytes: int, budget: Budget | None = None) -> Iterator[tuple[int, bytes]]:
    """The lines of an open file and their numbers from 1, none of which may be longer than so many bytes."""
    number = 0
    while line := file.readline(max_bytes + 1):
        number += 1
        if len(line) > max_bytes:
            raise DataError(
                f"{where}, line {number}: more than {max_bytes:,} bytes in one line; give a text in lines"
            )
        if budget is not None:
            budget.take(len(line))
        yield number, line
