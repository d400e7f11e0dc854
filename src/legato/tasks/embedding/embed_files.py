"""Vectors of many texts, or pictures, written to a file as they are made: what `legato embed` does.

.npy      a matrix (N, D) of float32, row N for text N; written in place, so it may be larger than memory
.npz      the same as "vectors", with "texts"; for tokens "vectors" (all of them, D), "tokens" and "offsets" (N + 1)
.jsonl    {"text": …, "vector": […]} a line; for tokens {"text": …, "tokens": […], "vectors": [[…], …]}
.tsv      numbers separated by tabs, one text a line

A picture has its name in the place of a text, as "image", and "images" in an .npz.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from legato.errors import ConfigError, DataError, brief
from legato.input_files import path_of
from legato.output_files import replacing_file
from legato.schema import to_json
from legato.tasks.embedding.text_vectors import TOKENS, TextVectors, VectorArray

if TYPE_CHECKING:  # texts need nothing of what reads pictures
    from legato.tasks.embedding.picture_vectors import PictureVectors

    Vectors = TextVectors | PictureVectors

BLOCK: Final = 8192  # texts sorted by length together
ENDINGS: Final = (".npy", ".npz", ".jsonl", ".tsv")

Done = Callable[[int], None]
Row = tuple[str, list[str] | None, VectorArray]
"""A text, or a picture's name, and its vector (D,); or a text's tokens, too, and a vector for each of them (T, D)."""


def ending_of(out: str, pool: str | None = None) -> str:
    """The kind of a file by its name: npy, npz, jsonl or tsv."""
    ending = Path(out).suffix.lower()
    if ending not in ENDINGS:
        raise ConfigError(f"--out {brief(out)} should end in one of {', '.join(ENDINGS)}, which says what is written")
    if pool == TOKENS and ending not in (".npz", ".jsonl"):
        raise ConfigError(f"texts have different numbers of tokens, which {out} cannot hold; write .npz or .jsonl")
    return ending[1:]


def embed_to_file(
    vectors: Vectors,
    texts: Sequence[Any],
    out: str | Path,
    pool: str | None = None,
    batch_size: int = 32,
    done: Done | None = None,
) -> int:
    """Write a vector for each text, or picture, to `out`; returns how many numbers a vector has.

    >>> embed_to_file(TextVectors.of(model.loaded, layers="sum-last-4"), texts, "vectors.npy")     # doctest: +SKIP
    384
    """
    kind, path, width = ending_of(str(out), pool), path_of(out), vectors.width
    rows = _rows(vectors, texts, batch_size, done, by_token=pool == TOKENS)
    try:
        with replacing_file(path) as fresh:
            if kind in ("jsonl", "tsv"):
                with fresh.open("w", encoding="utf-8") as lines:
                    lines.writelines(_line(row, _key(vectors), as_json=kind == "jsonl") + "\n" for row in rows)
            elif pool == TOKENS:
                _write_tokens(fresh, rows)
            else:
                _write_matrix(fresh, rows, (len(texts), width), _key(vectors), as_npy=kind == "npy")
        _warn(vectors)
    except OSError as problem:
        if problem.strerror is None:
            raise
        raise DataError(f"{out} cannot be written: {problem.strerror}") from problem
    return width


def embedded(
    vectors: Vectors, texts: Sequence[Any], pool: str | None, batch_size: int, *, as_json: bool
) -> Iterator[str]:
    """A line for each text, or picture: its numbers separated by tabs, or as JSON."""
    if pool == TOKENS and not as_json:
        raise ConfigError("vectors of tokens are printed as JSON: --json")
    for row in _rows(vectors, texts, batch_size, None, by_token=pool == TOKENS):
        yield _line(row, _key(vectors), as_json)
    _warn(vectors)


def _key(vectors: Vectors) -> str:
    """What each row is called."""
    return "text" if isinstance(vectors, TextVectors) else "image"


def _name(vectors: Vectors, given: Any) -> str:
    """A text itself, or a picture's name."""
    if isinstance(vectors, TextVectors):
        return str(given)
    from legato.data.image.picture_files import name_of

    return name_of(given)


def _warn(vectors: Vectors) -> None:
    if isinstance(vectors, TextVectors):
        vectors.reader.warn_of_cuts()


def _rows(
    vectors: Vectors, texts: Sequence[Any], batch_size: int, done: Done | None, *, by_token: bool
) -> Iterator[Row]:
    for start in range(0, len(texts), BLOCK):
        block = texts[start : start + BLOCK]
        if by_token and isinstance(vectors, TextVectors):
            found: Iterable[tuple[list[str] | None, VectorArray]] = vectors.tokens(block, batch_size, done)
        else:
            found = ((None, vector) for vector in vectors.embed(block, batch_size, done))
        for text, (tokens, numbers) in zip(block, found, strict=True):
            yield _name(vectors, text), tokens, numbers


def _write_matrix(file: Path, rows: Iterator[Row], shape: tuple[int, int], key: str, *, as_npy: bool) -> None:
    names = []
    held = np.lib.format.open_memmap(file, "w+", np.float32, shape) if as_npy else np.empty(shape, np.float32)
    for number, (name, _, vector) in enumerate(rows):
        held[number] = vector
        names.append(name)
    if isinstance(held, np.memmap):
        held.flush()
        return
    with file.open("wb") as out:
        np.savez(out, vectors=held, **{f"{key}s": np.array(names)})  # type: ignore[arg-type]  # no flag of its


def _write_tokens(file: Path, rows: Iterator[Row]) -> None:
    texts, tokens, matrices = zip(*rows, strict=True)
    with file.open("wb") as out:
        np.savez(
            out,
            vectors=np.concatenate(matrices),
            tokens=np.array([token for names in tokens for token in names]),
            offsets=np.cumsum([0, *map(len, tokens)]),
            texts=np.array(texts),
        )


def _line(row: Row, key: str, as_json: bool) -> str:
    text, tokens, numbers = row
    if tokens is not None:
        told = {"text": text, "tokens": tokens, "vectors": [_numbers(vector) for vector in numbers]}
        return to_json(told, ensure_ascii=False)
    if as_json:
        return to_json({key: text, "vector": _numbers(numbers)}, ensure_ascii=False)
    return "\t".join(f"{number:.9g}" for number in numbers)


def _numbers(vector: VectorArray) -> list[float]:
    """Nine digits, which is all that a float32 has."""
    return [float(f"{number:.9g}") for number in vector]
