"""Vectors of words from text files, as GloVe and word2vec write them, and back.

    400000 300                  a first line with how many there are and how long: word2vec has it, GloVe has not
    the 0.04656 0.21318 …       a word and its numbers
    . . . 0.0139 -0.211 …       a few of GloVe's names have spaces in them

Notable: only the lines of words that are wanted are turned into numbers, of the others no more than the spaces are
counted; so a file of two million words is read about as fast as it is unpacked.
"""

from __future__ import annotations

import gzip
import math
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Final, cast

import numpy as np
import torch
from torch import Tensor, nn

from legato.data.batching.batches import Array
from legato.data.sources.files import Budget, lines_of, no_file, not_damaged
from legato.data.text.tokenizers import AnyTokenizer
from legato.errors import ConfigError, DataError, brief
from legato.input_files import open_file, path_of

LONGEST: Final = 1 << 24  # bytes of a line: a word and its numbers
WIDEST: Final = 1_000_000  # numbers of a vector


@dataclass(frozen=True)
class Vectors:
    """What was found of the words that were wanted."""

    found: dict[str, Array]  # (width,) float32 each
    width: int
    lines: int  # words in the file


def read_vectors(path: Path, wanted: Iterable[str]) -> Vectors:
    """The vectors of the words in `wanted` that the file has; of a word that is there twice, the first."""
    names = {word.encode("utf-8", "surrogatepass"): word for word in wanted}
    found: dict[str, Array] = {}
    width = number = words = 0
    for number, raw in _lines(path):
        line = raw.rstrip()
        if number == 1 and len(sizes := line.split()) == 2 and all(size.isdigit() for size in sizes):
            width = int(sizes[1]) if len(sizes[1]) <= len(str(WIDEST)) else 0
            if not 1 <= width <= WIDEST:
                shown = _shown(sizes[1])
                raise DataError(f"{path}, line 1: vectors of {shown} numbers; there can be from 1 to {WIDEST:,}")
            continue
        if not line:
            continue
        if not width:
            width = _width_of_first(path, number, line)
        words += 1
        spaces = line.count(b" ")
        if spaces == width:
            name = line[: line.index(b" ")]
        else:
            name = _name_with_spaces(path, number, line, spaces, width)
        word = names.get(name)
        if word is not None and word not in found:
            found[word] = _numbers(path, number, line[len(name) :])
    if not words:
        raise DataError(f"{path} holds no vectors; give a text file with a word and its numbers a line")
    return Vectors(found, width, words)


def initialise_embedding(model: Any, tokenizer: AnyTokenizer, path: str | Path, say: Callable[[str], None]) -> None:
    """Begin with the vectors of a file: the rows of the model's `embedding` that have one become it.

    A word that the file lacks takes the vector of its lower-cased form, if that is there. The other rows stay as they
    were drawn, but as large on average as those that were found.
    """
    path = path_of(path)
    embedding = model.token_table
    if not isinstance(embedding, nn.Embedding):
        raise ConfigError("this model has no embedding of words for vectors to begin with; use model=lstm")
    if tokenizer.name != "word":
        raise ConfigError(
            f"{path} has vectors of words, but tokenizer={tokenizer.name} has pieces; set tokenizer=word"
        )
    words = {
        index: tokenizer.token_name(index) for index in range(tokenizer.size) if index not in tokenizer.special_ids
    }
    read = read_vectors(path, {form for word in words.values() for form in (word, word.lower())})
    if read.width != embedding.embedding_dim:
        raise ConfigError(
            f"{path} has vectors of {read.width} numbers, but the model's embedding has {embedding.embedding_dim}; "
            f"set model.embedding={read.width}"
        )
    either = {i: read.found.get(word, read.found.get(word.lower())) for i, word in words.items()}
    rows = {i: found for i, found in either.items() if found is not None}
    if not rows:
        raise DataError(f"{path} has no word of the vocabulary; is it of another language?")
    put_vectors(embedding.weight, list(rows), np.stack(list(rows.values())))
    lower = sum(words[i] not in read.found for i in rows)
    share = f"{len(rows) / len(words):.1%}"
    say(f"vectors: {path} has {len(rows):,} of {len(words):,} words ({share}), {lower:,} of those in lower case only")


@torch.no_grad()
def put_vectors(table: Tensor, rows: Sequence[int], vectors: Array) -> None:
    """Put `vectors` (N, D) into these rows of `table` (V, D); scale the others to be as large on average."""
    place = torch.tensor(rows, device=table.device)
    new = torch.from_numpy(vectors).to(table)
    others = torch.ones(len(table), dtype=torch.bool, device=table.device)
    others[place] = False
    if others.any():
        before, wanted = _spread(table[others]), _spread(new)
        if before > 0 and wanted > 0:
            table[others] *= wanted / before
    table[place] = new


def save_vectors(path: str | Path, words: Sequence[str], vectors: Array | Tensor) -> None:
    """Write `vectors` (words, D) in word2vec's text form, with a first line of both sizes; packed if named .gz.

    >>> save_vectors("two.txt", ["a", "b"], np.eye(2))  # doctest: +SKIP
    """
    path = path_of(path)
    table = np.asarray(vectors.detach().cpu() if isinstance(vectors, Tensor) else vectors, dtype=np.float32)
    if table.ndim != 2 or len(words) != len(table):
        raise DataError(f"{path}: {len(words):,} words do not go with vectors of shape {table.shape}")
    for word in words:
        if not word.strip() or "\n" in word or "\r" in word or word != word.strip():
            raise DataError(f"{path}: {brief(repr(word))} cannot be written as the name of a vector; leave it out")
    path.parent.mkdir(parents=True, exist_ok=True)
    with cast(IO[bytes], gzip.open(path, "wb") if path.suffix.lower() == ".gz" else path.open("wb")) as file:
        file.write(f"{len(words)} {table.shape[1]}\n".encode())
        for word, row in zip(words, table, strict=True):
            numbers = " ".join(f"{number:.9g}" for number in row.tolist())  # nine digits tell any two float32 apart
            file.write(f"{word} {numbers}\n".encode("utf-8", "surrogatepass"))


# --- lines -------------------------------------------------------------------------------------------


def _lines(path: Path) -> Iterator[tuple[int, bytes]]:
    """The file's lines with their numbers from 1, unpacked if it is a gzip."""
    if not path.exists():
        raise no_file(path)
    with open_file(path) as file, not_damaged(path):
        if path.suffix.lower() == ".gz":
            budget = Budget(str(path), os.fstat(file.fileno()).st_size)
            with gzip.GzipFile(fileobj=file) as unpacked:
                yield from lines_of(unpacked, str(path), LONGEST, budget)
        else:
            yield from lines_of(file, str(path), LONGEST)


def _width_of_first(path: Path, number: int, line: bytes) -> int:
    """How many numbers end the first line; its name may have spaces, but cannot be missing."""
    parts = line.split(b" ")
    width = 0
    while width < len(parts) - 1 and _is_number(parts[-1 - width]):
        width += 1
    if not width:
        raise DataError(
            f"{path}, line {number}: no vector; a line should be a word and its numbers, with spaces between"
        )
    return width


def _name_with_spaces(path: Path, number: int, line: bytes, spaces: int, width: int) -> bytes:
    """What stands before a line's last `width` fields, where that is more than one word."""
    if b"\0" in line:
        raise DataError(f"{path}, line {number}: binary numbers; save the vectors as text")
    parts = line.rsplit(b" ", width)
    if spaces < width or not all(map(_is_number, parts[1:])):
        raise DataError(
            f"{path}, line {number}: {spaces} numbers after '{_shown(line)}', where {width} should be; mend that line"
        )
    return parts[0]


def _numbers(path: Path, number: int, line: bytes) -> Array:
    try:
        row = np.array([float(part) for part in line.split()], dtype=np.float32)
    except ValueError:
        bad = next(part for part in line.split() if not _is_number(part))
        raise DataError(f"{path}, line {number}: '{_shown(bad)}' is no number; mend that line") from None
    if not np.isfinite(row).all():
        raise DataError(f"{path}, line {number}: a number that is not finite; mend that line")
    return row


def _is_number(part: bytes) -> bool:
    try:
        float(part)
    except ValueError:
        return False
    return True


def _shown(line: bytes) -> str:
    return line.split(b" ")[0][:40].decode("utf-8", "replace")


def _spread(table: Tensor) -> float:
    return math.sqrt(float(table.double().pow(2).mean()))
