"""What the parts of an index pass to each other: documents, passages, and what a commit writes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from legato.errors import ConfigError, brief
from legato.retrieval.bm25 import Posting

VectorArray = np.ndarray[Any, np.dtype[np.float32]]
Filter = Mapping[str, Sequence[str]]
"""Of each key the values that a passage may have; all keys have to fit."""
Scalar = str | bool | int | float
Where = Mapping[str, Scalar | Sequence[Scalar]]
"""A filter as people write it: of each key a value, or several."""


@dataclass(frozen=True)
class Block:
    """A part of a document that belongs together: a paragraph, a list, a table, code."""

    text: str
    start: int = 0  # where it begins in the document's text, in characters
    headings: tuple[str, ...] = ()  # those that it stands under, the outermost first
    page: int | None = None  # of a PDF, from 1


@dataclass(frozen=True)
class Document:
    """A text with its structure: a file, or a row of a table."""

    key: str  # tells it from others of the same file; "" where the file is one document
    title: str
    blocks: list[Block]
    metadata: dict[str, Any] = field(default_factory=dict)
    digest: str = ""  # of the line that it was read from, where it is one


@dataclass(frozen=True, repr=False)
class Passage:
    """What is found: a chunk of a document, and where it is from."""

    id: int
    source: str  # the file, as the index calls it; with #ROW for a row of a table
    title: str
    heading: str  # those that it stands under, joined by " › "
    page: int | None
    start: int  # where it stands in the document's text, in characters
    end: int
    text: str
    metadata: dict[str, Any]
    length: int = 0  # in terms, for BM25

    def __repr__(self) -> str:
        return f"Passage({self.source!r}, {brief(self.text)!r})"

    def as_json(self) -> dict[str, Any]:
        told = {"source": self.source, "title": self.title, "heading": self.heading, "page": self.page}
        return {**told, "start": self.start, "end": self.end, "text": self.text, "metadata": self.metadata}

    @property
    def searched_text(self) -> str:
        """What words and vectors are made of: the passage behind what says where it stands."""
        return "\n".join(part for part in (self.title, self.heading, self.text) if part)


@dataclass(frozen=True)
class FileRecord:
    """A file as it was when it was indexed."""

    source: str
    digest: str
    size: int
    modified: int  # nanoseconds


@dataclass(frozen=True)
class DocumentRecord:
    """A document as it was when it was indexed, and the numbers of its passages: first, first + 1, …"""

    source: str
    key: str
    digest: str
    first: int
    count: int


@dataclass(frozen=True)
class FileDocuments:
    """The documents of a file as they were when it was indexed, column by column: an object for each takes long."""

    source: str
    keys: Sequence[str] = ()
    digests: Sequence[str] = ()
    firsts: Sequence[int] = ()
    counts: Sequence[int] = ()

    def without(self, kept: Iterable[int] = ()) -> dict[str, DocumentRecord]:
        """Those that are not `kept`, which are given by their numbers in the columns, by their keys."""
        kept = set(kept)
        records = (
            DocumentRecord(self.source, self.keys[n], self.digests[n], self.firsts[n], self.counts[n])
            for n in range(len(self.keys))
            if n not in kept
        )
        return {record.key: record for record in records}


@dataclass
class Commit:
    """What one step changes in a store: all of it, or nothing."""

    passages: list[Passage] = field(default_factory=list)
    vectors: VectorArray | None = None  # (N, D), of length one
    postings: dict[str, Posting] = field(default_factory=dict)
    segment: int | None = None  # the number of those postings' segment
    merged: list[int] = field(default_factory=list)  # segments that it takes the place of
    documents: list[DocumentRecord] = field(default_factory=list)
    files: list[FileRecord] = field(default_factory=list)
    removed_documents: list[DocumentRecord] = field(default_factory=list)
    removed_files: list[str] = field(default_factory=list)


def filter_of(where: Where) -> Filter:
    """
    >>> filter_of({"year": 2024.0, "draft": False, "language": ["en", "de"]})
    {'year': ['2024'], 'draft': ['false'], 'language': ['en', 'de']}
    """
    found: dict[str, Sequence[str]] = {}
    if not isinstance(where, Mapping):
        raise ConfigError(f'a filter is a dict, such as {{"language": "en"}}, not {brief(repr(where))}')
    for key, given in where.items():
        many: list[Any] = list(given) if isinstance(given, list | tuple | set | frozenset) else [given]
        for one in many:
            if not isinstance(one, str | bool | int | float):
                raise ConfigError(
                    f"a filter is of texts, numbers or lists of those; '{brief(key)}' is {brief(repr(one))}"
                )
        found[key] = [_spelled(one) for one in many]
    return found


def _spelled(value: Scalar) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return str(int(value)) if isinstance(value, float) and value.is_integer() else str(value)


def facets_of(passage: Passage) -> list[str]:
    """What a passage can be filtered by, as `key=value`; long texts are none."""
    own = {"source": passage.source.partition("#")[0], "title": passage.title, **passage.metadata}
    facets = []
    for key, value in own.items():
        for one in value if isinstance(value, list) else [value]:
            if isinstance(one, str | bool | int | float) and 0 < len(_spelled(one)) <= 200:
                facets.append(f"{key}={_spelled(one)}")
    return facets
