"""What was packed, unpacked, but no further than any text goes.

A few kilobytes can hold petabytes: a gzip or a zip of zeros, a parquet file whose one long text is named a billion
times. Deflate makes text 2 to 10 times smaller, and tables that repeat themselves perhaps 100 times; 1,032 times is
what it does to zeros. So what is small may be anything, and what is large may be so many times as large as the file.
What is much is counted before any of it is kept, so that refusing it takes no memory either.
"""

from __future__ import annotations

import contextlib
import gzip
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO, Final

from legato import memory
from legato.errors import DataError

SMALL = 1 << 26  # bytes that anything may become
HELD = 1 << 28  # bytes that are kept before it is known how many there are
RATIO: Final = 200
BLOCK: Final = 1 << 20
VALUE: Final = 16  # bytes that a value of a table takes at least, once it is read


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
