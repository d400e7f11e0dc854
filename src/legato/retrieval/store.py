"""Where an index is kept: what every store can do."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Protocol

import numpy as np

from legato.errors import LegatoError
from legato.retrieval.bm25 import IntArray, Posting
from legato.retrieval.manifest import Manifest
from legato.retrieval.records import Commit, FileDocuments, FileRecord, Filter, Passage, VectorArray

FLAT = 20_000  # passages up to which all vectors are compared, so that what is found is exact
PROBED = 40  # clusters of vectors that are looked into beyond that, of about as many as √N


class Store(Protocol):
    """The tables of an index. A commit is written as a whole or not at all, and readers see whole ones only."""

    place: str

    def manifest(self) -> Manifest | None:
        """What the index says of itself; None where there is no index yet."""
        ...

    def missing(self) -> LegatoError:
        """What to say where there is no index."""
        ...

    def locked(self) -> AbstractContextManager[None]:
        """One writer at a time; another is refused."""
        ...

    def create(self, manifest: Manifest) -> None:
        """Begin an index with nothing in it."""
        ...

    def write(self, commit: Commit, manifest: Manifest) -> None: ...

    def finish(self, manifest: Manifest) -> None:
        """Make what has been written fast to search."""
        ...

    def files(self) -> dict[str, FileRecord]: ...

    def documents(self, source: str) -> FileDocuments:
        """Those of a file."""
        ...

    def lengths(self) -> tuple[IntArray, IntArray]:
        """The numbers of all passages, and how many terms each has."""
        ...

    def postings(self, terms: Sequence[str]) -> dict[str, list[Posting]]:
        """Of each term its postings, segment by segment."""
        ...

    def segment(self, number: int) -> dict[str, Posting]: ...

    def nearest(self, vector: VectorArray, count: int, where: Filter) -> list[tuple[int, float]]:
        """The passages whose vectors have the largest cosines with this one, best first."""
        ...

    def matching(self, where: Filter) -> IntArray:
        """The numbers of the passages that a filter lets through."""
        ...

    def passages(self, numbers: Sequence[int]) -> dict[int, Passage]: ...

    def close(self) -> None: ...


def pack(posting: Posting) -> tuple[bytes, bytes]:
    """A posting as both stores keep it."""
    return posting[0].astype("<u4").tobytes(), posting[1].astype("<u2").tobytes()


def unpack(ids: bytes, counts: bytes) -> Posting:
    """A posting from its bytes; `ValueError` where they are none."""
    found = np.frombuffer(ids, "<u4").astype(np.int64), np.frombuffer(counts, "<u2").astype(np.int64)
    if len(found[0]) != len(found[1]):
        raise ValueError("numbers and counts of a term differ")
    return found
