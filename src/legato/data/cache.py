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
from typing import IO, Any, Final

import numpy as np

from legato.data.batching.batches import Array
from legato.data.formats.text import Text
from legato.data.text.tokenizers import AnyTokenizer, Tokenizer, TokenizerConfig
from legato.errors import LegatoError
from legato.input_files import open_file
from legato.output_files import cache_folder, replacing_file

VERSION: Final = 2  # raise it when the same key should give other content

SEAL: Final = b"\nsha256 %s\n"  # behind the content; a memory map of the array before it does not mind
SEALED: Final = len(SEAL) - 2 + 64  # bytes
BLOCK: Final = 1 << 20  # bytes hashed at once


def cached_ids(text: Text, tokenizer: AnyTokenizer) -> Array:
    """All documents as one row of ids, `<eos> document <eos> document …`; read-only, of two bytes where they fit."""
    dtype = np.dtype(np.uint16 if tokenizer.size <= 1 << 16 else np.int32)
    # True: once documents could also be joined without the EOS token, and what is there keeps its name.
    file = cache_folder() / f"ids-{_key(text.sha256, tokenizer.fingerprint(), True, dtype.str)}.npy"
    there = _mapped(file, dtype)
    if there is not None:
        return there
    ids = _join(text, tokenizer, dtype)
    ids.flags.writeable = False
    if len(ids) == 0 or not _write(file, lambda out: np.save(out, ids)):
        return ids
    mapped = _mapped(file, dtype)
    return ids if mapped is None else mapped


def document_starts(ids: Array, text: Text, tokenizer: AnyTokenizer) -> Array:
    """Where in `cached_ids(text, tokenizer)` the EOS token stands that each document is read behind."""
    if tokenizer.ends_text:
        found = np.flatnonzero(np.asarray(ids) == tokenizer.eos_id)
        if len(found) == len(text.documents):
            return found
    # The token stands inside documents, too: it ends the lines of a text of words.
    starts, end = [], 0  # `end`: where the next document's EOS token stands
    for document in tokenizer.encode_many(text.documents):
        starts.append(end)
        ended = bool(len(document)) and int(document[-1]) == tokenizer.eos_id
        end += len(document) + (0 if ended else 1)
    return np.array(starts)


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


def _join(text: Text, tokenizer: AnyTokenizer, dtype: np.dtype[Any]) -> Array:
    end = np.array([tokenizer.eos_id], dtype=dtype)
    parts: list[Array] = []
    ended = False
    for ids in tokenizer.encode_many(text.documents):
        # A text of words ends its last line with <eos> already.
        if not ended:
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


def _write(file: Path, write: Callable[[IO[bytes]], object]) -> bool:
    """Whether `file` could be written; half a file is never seen under its name."""
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        with replacing_file(file) as fresh, fresh.open("w+b") as out:
            write(out)
            out.seek(0)
            digest = hashlib.file_digest(out, "sha256").hexdigest()
            out.write(SEAL % digest.encode())
    except OSError:
        return False
    return True
