"""Bringing an index up to date: what is new or changed is read again, what is gone leaves, the rest stays untouched.

A file is known by its size, its time and its hash, a document by its hash. Passages are committed some thousand at
a time, of a slow encoder's as many as it reads in half a minute; each commit leaves an index that is whole, so that a
kill loses what came after it, and running it again goes on.
"""

from __future__ import annotations

import hashlib
import json
import os
import shlex
import time
import warnings
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import numpy as np

from legato.errors import DataError, brief
from legato.input_files import path_of
from legato.retrieval.bm25 import IntArray, PostingsBuilder, merge_postings, terms_of
from legato.retrieval.chunks import chunks_of
from legato.retrieval.documents import (
    NoText,
    check_document_place,
    digest_of,
    files_under,
    is_gone,
    read_changes,
    reading,
)
from legato.retrieval.manifest import Manifest, unit_vectors
from legato.retrieval.models import Encoder
from legato.retrieval.records import Commit, Document, DocumentRecord, FileDocuments, FileRecord, Passage
from legato.retrieval.store import Store

BATCH: Final = 20_000  # passages of a commit at most
FIRST: Final = 500  # … where an encoder reads them and nobody knows yet how fast it is
PERIOD: Final = 30.0  # seconds that it reads for a commit
PATIENCE: Final = 300.0  # seconds after which there is one in any case
ENCODED: Final = 512  # texts that an encoder is given at once
SEGMENTS: Final = 12  # beyond which the smallest are merged
FRESH: Final = 2_000_000_000  # nanoseconds within which a file may change again and keep its time
MAX_PASSAGES: Final = (1 << 32) - 1  # whose numbers postings can hold

Progress = Callable[[int], None]


@dataclass
class UpdateReport:
    """What an update did."""

    added: int = 0  # documents
    changed: int = 0
    removed: int = 0
    unchanged: int = 0
    skipped: list[str] = field(default_factory=list)  # why files were left out
    passages: int = 0  # of the whole index, as are
    documents: int = 0
    seconds: float = 0.0

    def as_json(self) -> dict[str, Any]:
        return dict(vars(self))


class Update:
    """One update of one index."""

    def __init__(
        self, store: Store, manifest: Manifest, there: bool, encoder: Encoder | None, progress: Progress | None
    ) -> None:
        """`there`: whether the store holds an index already; else one is made with the first commit."""
        self.store, self.manifest, self.there, self.encoder = store, manifest, there, encoder
        self.progress = progress or (lambda count: None)
        self.report = UpdateReport()
        self.commit = Commit()
        self.batch = BATCH if encoder is None else min(FIRST, BATCH)
        self.last = time.monotonic()
        self.closed: set[str] = set()  # folders and files that could not be looked into, by their names in the index

    def run(self, places: Sequence[str | Path]) -> UpdateReport:
        """Read these files and folders; without any, those that the index is of."""
        began = time.monotonic()
        roots = self._roots(places)
        known = self.store.files() if self.there else {}
        found = dict(self._files(roots))
        self.manifest.complete = False
        left = {
            source
            for source in known
            if source not in found
            and source.split("/")[0] in roots
            and not f"{source}/".startswith(tuple(f"{name}/" for name in self.closed))
        }
        for source, path in found.items():
            try:
                self._file(source, path, known.get(source))
            except DataError as problem:
                if places and path in roots.values():  # somebody names it now
                    raise
                stays = source in known and not isinstance(problem, NoText)
                told = f"; what the index holds of it stays: --remove {shlex.quote(source)} takes it out"
                self.report.skipped.append(f"{problem}{told if stays else ''}")
                if source in known and not stays:
                    left.add(source)
        for source in sorted(left):
            self._remove_file(source)
        if not found and not self.there:
            raise DataError(f"there is no document in {brief(', '.join(map(str, places)))}; name files or folders")
        if self.manifest.documents == 0 and not self.there:
            reason = self.report.skipped[-1] if self.report.skipped else "no document is left in it"
            raise DataError(f"there is nothing to index: {reason}")
        self.manifest.complete = True
        self._write()
        self._merge()
        if self.report.added or self.report.changed or self.report.removed:
            self.store.finish(self.manifest)
        for line in self.report.skipped:
            warnings.warn(line, stacklevel=2)
        self.report.passages, self.report.documents = self.manifest.passages, self.manifest.documents
        self.report.seconds = round(time.monotonic() - began, 3)
        return self.report

    def remove(self, sources: Iterable[str]) -> UpdateReport:
        """Take files out of the index, by what the index calls them; a folder's name takes all that is in it."""
        known = self.store.files() if self.there else {}
        for name in sources:
            below = [source for source in known if source == name or source.startswith(f"{name.rstrip('/')}/")]
            if not below and not self._is_there(name):
                roots = brief(", ".join(self.manifest.roots) or "nothing")
                raise DataError(f"the index holds no '{brief(name)}'; it is of {roots}")
            for source in below:
                self._remove_file(source)
                del known[source]
            if self.manifest.roots.pop(name.rstrip("/"), None) is None:
                self.manifest.removed = sorted({*self.manifest.removed, name.rstrip("/")})
        self._write()
        self.report.passages, self.report.documents = self.manifest.passages, self.manifest.documents
        return self.report

    def _is_there(self, name: str) -> bool:
        """Whether something that the index does not hold is where it looks."""
        root, _, rest = name.rstrip("/").partition("/")
        return bool(rest) and root in self.manifest.roots and not is_gone(Path(self.manifest.roots[root], rest))

    # --- files -------------------------------------------------------------------------------------

    def _roots(self, places: Sequence[str | Path]) -> dict[str, Path]:
        """The files and folders to read, by what the index calls them."""
        known = self.manifest.roots
        if not places:
            if not known:
                none = "" if self.there else f"there is no index {self.store.place} yet: "
                raise DataError(f"{none}name files or folders to index")
            return {name: path_of(place) for name, place in known.items()}
        roots = {}
        for place in places:
            path = Path(os.path.realpath(check_document_place(place)))
            if self._is_own(path):
                raise DataError(f"{path} is where the index itself is; give --out another folder")
            name = next((name for name, place in known.items() if place == str(path)), path.name or "root")
            base, number = name, 1
            while name in known and known[name] != str(path):
                number += 1
                name = f"{base}-{number}"  # another folder of the same name
            known[name] = str(path)
            roots[name] = path
            self.manifest.removed = [each for each in self.manifest.removed if not each.startswith(f"{name}/")]
        return roots

    def _files(self, roots: dict[str, Path]) -> Iterable[tuple[str, Path]]:
        """Each file's name in the index, and its path."""
        removed = tuple(f"{name}/" for name in self.manifest.removed)
        for name, path in roots.items():
            if os.path.isdir(path):
                closed = list[Path]()
                for file in files_under(path, self.report.skipped, closed, self._own):
                    source = f"{name}/{file.relative_to(path).as_posix()}"
                    if not f"{source}/".startswith(removed):
                        yield source, file
                self.closed |= {f"{name}/{each.relative_to(path).as_posix()}".removesuffix("/.") for each in closed}
            elif is_gone(path):
                self.report.skipped.append(f"{path} is no longer there; what was in it has left the index")
            elif os.path.exists(path):
                yield name, path
            else:
                self.closed.add(name)
                self.report.skipped.append(f"{path} cannot be read; what the index holds of it stays")

    @property
    def _own(self) -> Path | None:
        """The folder of the index itself, which may lie among the documents."""
        return None if "://" in self.store.place else Path(os.path.realpath(self.store.place))

    def _is_own(self, path: Path) -> bool:
        return self._own is not None and path.is_relative_to(self._own)

    def _file(self, source: str, path: Path, known: FileRecord | None) -> None:
        try:
            source.encode()
        except UnicodeEncodeError:
            raise DataError(f"{brief(source)}: its name is no text; rename it") from None
        with reading(path):
            state = path.stat()
        if state.st_size == 0:
            raise NoText(f"{path} is empty; there is nothing to find in it")
        same = known is not None and (known.size, known.modified) == (state.st_size, state.st_mtime_ns)
        if same and known is not None and known.digest:
            self.report.unchanged += 1
            return
        with reading(path):
            digest = digest_of(path)
        # A file that was changed just now may be changed again within the same tick of the clock: no time for it.
        settled = time.time_ns() - state.st_mtime_ns > FRESH
        record = FileRecord(source, digest, state.st_size, state.st_mtime_ns if settled else 0)
        if known is not None and known.digest == digest:
            self.report.unchanged += 1
            if known != record:
                self.commit.files.append(record)
            return
        before = self.store.documents(source) if self.there else FileDocuments(source)
        with reading(path):
            documents, kept = read_changes(path, self.manifest.column, before)  # all of them, or none
        old = before.without(kept)
        self.report.unchanged += len(kept)
        for document in documents:
            self._document(source, document, old.pop(document.key, None))
        for gone in old.values():
            self._remove_document(gone)
            self.report.removed += 1
        self.commit.files.append(record)

    def _remove_file(self, source: str) -> None:
        for gone in self.store.documents(source).without().values():
            self._remove_document(gone)
            self.report.removed += 1
        self.commit.removed_files.append(source)

    # --- documents ---------------------------------------------------------------------------------

    def _document(self, source: str, document: Document, before: DocumentRecord | None) -> None:
        digest = _digest(document)
        if before is not None and before.digest == digest:
            self.report.unchanged += 1
            return
        if before is not None:
            self._remove_document(before)
        first = self.manifest.next_passage
        name = f"{source}#{document.key}" if document.key else source
        for chunk in chunks_of(document, self.manifest.chunking):
            number = self.manifest.next_passage
            if number >= MAX_PASSAGES:
                raise DataError(
                    f"an index has numbers for {MAX_PASSAGES:,} passages, and they are used up; make a new one"
                )
            self.manifest.next_passage += 1
            where = (chunk.heading, chunk.page, chunk.start, chunk.end, chunk.text)
            self.commit.passages.append(Passage(number, name, document.title, *where, document.metadata))
        count = self.manifest.next_passage - first
        self.commit.documents.append(DocumentRecord(source, document.key, digest, first, count))
        self.manifest.passages += count
        self.manifest.documents += 1
        if before is None:
            self.report.added += 1
        else:
            self.report.changed += 1
        if len(self.commit.passages) >= self.batch or time.monotonic() - self.last > PATIENCE:
            self._write()

    def _remove_document(self, gone: DocumentRecord) -> None:
        self.commit.removed_documents.append(gone)
        self.manifest.passages -= gone.count
        self.manifest.documents -= 1

    # --- commits -----------------------------------------------------------------------------------

    def _write(self) -> None:
        commit = self.commit
        if commit.passages:
            builder, passages = PostingsBuilder(), []
            for passage in commit.passages:
                terms = terms_of(passage.searched_text)
                builder.add(passage.id, terms)
                # A passage without terms is there, too, and has the shortest length.
                passages.append(Passage(**{**vars(passage), "length": max(len(terms), 1)}))
            commit.passages = passages
            commit.postings, commit.segment = builder.postings(), self.manifest.next_segment
            self.manifest.segments[commit.segment] = builder.size
            self.manifest.next_segment += 1
            commit.vectors = self._vectors([passage.searched_text for passage in passages])
        if not self.there:
            self.store.create(self.manifest)
            self.there = True
        self.store.write(commit, self.manifest)
        self.commit, self.last = Commit(), time.monotonic()

    def _vectors(self, texts: list[str]) -> Any:
        if self.encoder is None:
            self.progress(len(texts))
            return None
        made, begun = [], time.monotonic()
        for start in range(0, len(texts), ENCODED):
            some = texts[start : start + ENCODED]
            made.append(unit_vectors(self.encoder.encode(some)))
            self.progress(len(some))
        fast = PERIOD * len(texts) / max(time.monotonic() - begun, 1e-3)
        self.batch = max(min(FIRST, BATCH), min(BATCH, int(fast)))
        return np.concatenate(made)

    def _merge(self) -> None:
        """Make one of the smallest segments where there are many, so that a term is never in more than some."""
        segments = self.manifest.segments
        if len(segments) <= SEGMENTS:
            return
        smallest = sorted(segments, key=lambda number: (segments[number], number))[: len(segments) - SEGMENTS // 3]
        lengths = dense_lengths(*self.store.lengths(), self.manifest.next_passage)
        merged = merge_postings((self.store.segment(number) for number in smallest), lengths)
        for number in smallest:
            del segments[number]
        commit = Commit(postings=merged, segment=self.manifest.next_segment, merged=smallest)
        segments[self.manifest.next_segment] = sum(len(ids) for ids, _ in merged.values())
        self.manifest.next_segment += 1
        self.store.write(commit, self.manifest)


def dense_lengths(ids: IntArray, lengths: IntArray, count: int) -> IntArray:
    """The lengths of passages by their numbers, 0 where there is none."""
    found = np.zeros(count, dtype=np.int64)
    inside = (ids >= 0) & (ids < count)
    found[ids[inside]] = np.maximum(lengths[inside], 0)
    return found


def _digest(document: Document) -> str:
    if document.digest:
        return document.digest
    said = [
        document.title,
        [(block.text, block.headings, block.page) for block in document.blocks],
        document.metadata,
    ]
    return hashlib.sha256(json.dumps(said, sort_keys=True).encode()).hexdigest()
