"""Vectors of many texts, written to a file as they are made: what `legato embed` does.

.npy      a matrix (N, D) of float32, row N for text N; written in place, so it may be larger than memory
.npz      the same as "vectors", with "texts"; for tokens "vectors" (all of them, D), "tokens" and "offsets" (N + 1)
.jsonl    {"text": …, "vector": […]} a line; for tokens {"text": …, "tokens": […], "vectors": [[…], …]}
.tsv      numbers separated by tabs, one text a line
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import IO, Any, Final

import numpy as np
import torch

from legato.errors import ConfigError, DataError, brief
from legato.folders.loaded import Loaded
from legato.input_files import path_of
from legato.output_files import replacing_file
from legato.schema import to_json
from legato.tasks.embedding.text_vectors import TOKENS, TextVectors, Vectors

BLOCK: Final = 8192  # texts sorted by length together
ENDINGS: Final = (".npy", ".npz", ".jsonl", ".tsv")

Done = Callable[[int], None]


def ending_of(out: str, pool: str | None = None) -> str:
    """The kind of a file by its name: npy, npz, jsonl or tsv."""
    ending = Path(out).suffix.lower()
    if ending not in ENDINGS:
        raise ConfigError(f"--out {brief(out)} should end in one of {', '.join(ENDINGS)}, which says what is written")
    if pool == TOKENS and ending not in (".npz", ".jsonl"):
        raise ConfigError(f"texts have different numbers of tokens, which {out} cannot hold; write .npz or .jsonl")
    return ending[1:]


def embed_to_file(
    loaded: Loaded,
    texts: Sequence[str],
    out: str | Path,
    *,
    layers: str | None = None,
    pool: str | None = None,
    normalize: bool | None = None,
    batch_size: int = 32,
    done: Done | None = None,
) -> int:
    """Write a vector for each text to `out`; returns how many numbers a vector has.

    >>> embed_to_file(legato.load("runs/m").loaded, texts, "vectors.npy", layers="sum-last-4")     # doctest: +SKIP
    384
    """
    kind, path = ending_of(str(out), pool), path_of(out)
    vectors = TextVectors.of(loaded, layers=layers, pool=pool, normalize=normalize)
    with torch.no_grad():
        width = vectors.width
    try:
        with replacing_file(path) as fresh:
            _write(fresh, kind, vectors, texts, batch_size, done, by_token=pool == TOKENS)
        vectors.reader.warn_of_cuts()
    except OSError as problem:
        if problem.strerror is None:
            raise
        raise DataError(f"{out} cannot be written: {problem.strerror}") from problem
    return width


def _write(
    file: Path,
    kind: str,
    vectors: TextVectors,
    texts: Sequence[str],
    batch_size: int,
    done: Done | None,
    *,
    by_token: bool,
) -> None:
    if kind == "npy":
        held = np.lib.format.open_memmap(file, "w+", np.float32, (len(texts), vectors.width))
        _fill(held, vectors, texts, batch_size, done)
        held.flush()
    elif kind == "npz":
        with file.open("wb") as out:
            _write_npz(out, vectors, texts, batch_size, done, by_token=by_token)
    else:
        with file.open("w", encoding="utf-8") as lines:
            for line in _lines(vectors, texts, batch_size, done, as_json=kind == "jsonl", by_token=by_token):
                lines.write(line + "\n")


def embedded(
    loaded: Loaded,
    texts: Sequence[str],
    *,
    layers: str | None = None,
    pool: str | None = None,
    normalize: bool | None = None,
    batch_size: int = 32,
    as_json: bool = False,
) -> Iterator[str]:
    """A line for each text: its numbers separated by tabs, or as JSON."""
    if pool == TOKENS and not as_json:
        raise ConfigError("vectors of tokens are printed as JSON: --json")
    vectors = TextVectors.of(loaded, layers=layers, pool=pool, normalize=normalize)
    return _lines(vectors, texts, batch_size, None, as_json=as_json, by_token=pool == TOKENS)


def _blocks(texts: Sequence[str]) -> Iterator[tuple[int, Sequence[str]]]:
    for start in range(0, len(texts), BLOCK):
        yield start, texts[start : start + BLOCK]


@torch.no_grad()
def _fill(place: Any, vectors: TextVectors, texts: Sequence[str], batch_size: int, done: Done | None) -> None:
    for start, block in _blocks(texts):
        place[start : start + len(block)] = vectors.embed(block, batch_size, done)


@torch.no_grad()
def _write_npz(
    file: IO[bytes], vectors: TextVectors, texts: Sequence[str], batch_size: int, done: Done | None, *, by_token: bool
) -> None:
    if not by_token:
        found = np.empty((len(texts), vectors.width), dtype=np.float32)
        _fill(found, vectors, texts, batch_size, done)
        np.savez(file, vectors=found, texts=np.array(texts))
        return
    rows: list[tuple[list[str], Vectors]] = []
    for _, block in _blocks(texts):
        rows += vectors.tokens(block, batch_size, done)
    np.savez(
        file,
        vectors=np.concatenate([matrix for _, matrix in rows]),
        tokens=np.array([token for tokens, _ in rows for token in tokens]),
        offsets=np.cumsum([0, *(len(tokens) for tokens, _ in rows)]),
        texts=np.array(texts),
    )


def _lines(
    vectors: TextVectors,
    texts: Sequence[str],
    batch_size: int,
    done: Done | None,
    *,
    as_json: bool,
    by_token: bool,
) -> Iterator[str]:
    for _, block in _blocks(texts):
        if by_token:
            with torch.no_grad():
                rows = vectors.tokens(block, batch_size, done)
            for text, (tokens, matrix) in zip(block, rows, strict=True):
                told = {"text": text, "tokens": tokens, "vectors": [_numbers(vector) for vector in matrix]}
                yield to_json(told, ensure_ascii=False)
            continue
        with torch.no_grad():
            found = vectors.embed(block, batch_size, done)
        for text, vector in zip(block, found, strict=True):
            if as_json:
                yield to_json({"text": text, "vector": _numbers(vector)}, ensure_ascii=False)
            else:
                yield "\t".join(f"{number:.9g}" for number in vector)
    vectors.reader.warn_of_cuts()


def _numbers(vector: Vectors) -> list[float]:
    """Nine digits, which is all that a float32 has."""
    return [float(f"{number:.9g}") for number in vector]
