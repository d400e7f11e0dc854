"""Token ids and trained tokenizers on disk, so that a text is encoded once.

A file's name is the hash of all that decides its content (the text, the tokenizer, the layout, the
version of this format), so nothing here is ever out of date. Files are written under another name, synced and
renamed; ids are memory-mapped. A cache that is damaged is made anew, and one that cannot be written
(no permission, a full disk) only means that the work is done again next time.

Damage is seen: behind its content each file has the content's SHA-256, which is compared whenever it is opened. A
flipped bit would else be another token, and nobody would know. (Of what Python brings it is the fastest but for
CRC-32, where processors have instructions for it; the text, which is longer, goes through it as well.)
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any, Final, cast

import numpy as np

from legato.data.formats.text import Text
from legato.data.text.tokenizers import AnyTokenizer, Tokenizer, TokenizerConfig
from legato.errors import LegatoError
from legato.input_files import open_file, path_of
from legato.output_files import replacing_file

VERSION: Final = 2  # raise it when the same key should give other content

Array = np.ndarray[Any, np.dtype[Any]]

SEAL: Final = b"\nsha256 %s\n"  # behind the content; a memory map of the array before it does not mind
SEALED: Final = len(SEAL) - 2 + 64  # bytes
BLOCK: Final = 1 << 20  # bytes hashed at once


def cache_folder() -> Path:
    """`$LEGATO_CACHE`, or `legato` in the user's cache folder."""
    if own := os.environ.get("LEGATO_CACHE"):
        return path_of(own)
    return path_of(os.environ.get("XDG_CACHE_HOME") or "~/.cache") / "legato"


def cached_ids(text: Text, tokenizer: AnyTokenizer, *, separator: bool = True) -> Array:
    """All documents as one row of ids, `<eos> document <eos> document …`; read-only.

    Without `separator` the documents are simply joined. An id takes two bytes where it fits.
    """
    dtype = np.dtype(np.uint16 if tokenizer.size <= 1 << 16 else np.int32)
    file = cache_folder() / f"ids-{_key(text.sha256, tokenizer.fingerprint(), separator, dtype.str)}.npy"
    there = _mapped(file, dtype)
    if there is not None:
        return there
    ids = _join(text, tokenizer, dtype, separator)
    ids.flags.writeable = False
    if len(ids) == 0 or not _write(file, lambda out: np.save(cast(Any, out), ids)):
        return ids
    mapped = _mapped(file, dtype)
    return ids if mapped is None else mapped


def cached_tokenizer(config: TokenizerConfig, text: Text) -> Tokenizer:
    """The tokenizer that `config` and `text` give, trained once."""
    if config.path is not None or config.name == "byte":
        return Tokenizer.train(config, text.documents)  # neither looks at the text
    import tokenizers

    key = _key(text.sha256, config.model_dump_json(), tokenizers.__version__)
    file = cache_folder() / f"tokenizer-{key}.json"
    if _whole(file):
        return Tokenizer(tokenizers.Tokenizer.from_str(file.read_bytes()[:-SEALED].decode("utf-8")))
    trained = Tokenizer.train(config, text.documents)
    _write(file, lambda out: out.write(trained.library.to_str().encode("utf-8")))
    return trained


def _key(*parts: object) -> str:
    return hashlib.sha256(repr((VERSION, *parts)).encode()).hexdigest()[:32]


def _join(text: Text, tokenizer: AnyTokenizer, dtype: np.dtype[Any], separator: bool) -> Array:
    end = np.array([tokenizer.eos_id], dtype=dtype)
    parts: list[Array] = []
    ended = False
    for ids in tokenizer.encode_many(text.documents):
        # A text of words ends its last line with <eos> already.
        if separator and not ended:
            parts.append(end)
        parts.append(ids.astype(dtype))
        ended = bool(len(ids)) and int(ids[-1]) == tokenizer.eos_id
    return np.concatenate(parts) if parts else np.zeros(0, dtype=dtype)


def _mapped(file: Path, dtype: np.dtype[Any]) -> Array | None:
    """The ids in `file`; None where there are none or it is not whole."""
    if not _whole(file):
        return None
    try:
        ids: Array = np.load(file, mmap_mode="r", allow_pickle=False)
    except (OSError, ValueError, EOFError):
        return None
    return ids if ids.dtype == dtype and ids.ndim == 1 else None


def _whole(file: Path) -> bool:
    """Whether `file` is there and its content is what was written."""
    digest, buffer = hashlib.sha256(), memoryview(bytearray(BLOCK))
    try:
        with open_file(file) as held:
            left = os.fstat(held.fileno()).st_size - SEALED
            while left > 0:
                count = held.readinto(buffer[: min(left, BLOCK)])
                if not count:
                    return False
                digest.update(buffer[:count])
                left -= count
            return held.read(SEALED + 1) == SEAL % digest.hexdigest().encode()
    except (OSError, LegatoError):
        return False


class _Sealing:
    """A file to write to, which knows the hash of what was written."""

    def __init__(self, out: IO[bytes]) -> None:
        self.out, self.digest = out, hashlib.sha256()

    def write(self, data: bytes) -> int:
        self.digest.update(data)
        return self.out.write(data)

    def seal(self) -> None:
        self.out.write(SEAL % self.digest.hexdigest().encode())


def _write(file: Path, write: Callable[[_Sealing], object]) -> bool:
    """Whether `file` could be written; half a file is never seen under its name."""
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        with replacing_file(file) as fresh, fresh.open("wb") as out:
            sealing = _Sealing(out)
            write(sealing)
            sealing.seal()
    except OSError:
        return False
    return True
