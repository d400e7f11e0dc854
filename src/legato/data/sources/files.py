"""What is in a file: its bytes, unpacked if it is a gzip, and its text.

`\\r\\n` and `\\r` become `\\n` and a byte-order mark is dropped: the model never sees either.

Whatever is wrong with a file is said here, in one line that names it: it is missing, a folder, not for this user,
empty, binary, in another encoding, or has a line so long that it must be something else.
"""

from __future__ import annotations

import codecs
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from legato.data.sources.unpacking import gunzip
from legato.errors import DataError, brief
from legato.input_files import near_path, open_file, path_of, read_bytes
from legato.schema import is_text

MAX_LINE: Final = 10_000_000
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
