"""SHA-256 of texts: the hash that names what was read, and numbers that follow from a text alone.

A run remembers the hashes of its data and goes on only where they are the same, so what each format puts in, byte for
byte, is for ever.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Sequence

from legato.errors import DataError


def sha256_of(parts: Iterable[str | bytes]) -> str:
    """The hash of these parts one after another; a text is its UTF-8, half characters as they come."""
    digest = hashlib.sha256()
    for part in parts:
        digest.update(part.encode("utf-8", "surrogatepass") if isinstance(part, str) else part)
    return digest.hexdigest()


def sized(texts: Iterable[str], where: Callable[[int], str]) -> Iterator[bytes]:
    """Each text behind its length, which keeps ["ab", "c"] and ["a", "bc"] apart.

    Half a surrogate pair is refused; `where` says where a row stands.
    """
    for row, text in enumerate(texts):
        try:
            data = text.encode("utf-8")
        except UnicodeEncodeError as problem:
            raise DataError(
                f"{where(row)}: half a surrogate pair at character {problem.start}, which is no text; remove it"
            ) from None
        yield len(data).to_bytes(8, "little")
        yield data


def sized_columns(columns: Iterable[Sequence[str]], where: Callable[[int], str]) -> Iterator[bytes]:
    """The columns of a table, each behind the number of its rows."""
    for column in columns:
        yield len(column).to_bytes(8, "little")
        yield from sized(column, where)


def chance(text: str) -> float:
    """A number in [0, 1) that follows from the text alone."""
    digest = hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()
    return int.from_bytes(digest[:6], "big") / 2**48
