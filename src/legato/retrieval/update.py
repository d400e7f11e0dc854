"""Bringing an index up to date: what is new or changed is read again, what is gone leaves, the rest stays untouched.

A file is known by its size, its time and its hash, a document by its hash. A document that cannot be read, whatever
its reader raises, is reported and stays in the index as it was. Each half minute, and after some thousand passages,
what has been read since is committed. Each commit leaves an index that is whole, so that a kill loses what came after
it, and running it again goes on. A document is committed as a whole, however long it takes.
"""

from __future__ import annotations

import hashlib
import json
import os
import shlex
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import numpy as np

from legato.errors import DataError, brief, warn
from legato.input_files import check_regular, path_of
from legato.retrieval.bm25 import IntArray, PostingsBuilder, merge_postings, terms_of
from legato.retrieval.chunks import Chunk, chunks_of
from legato.retrieval.documents import (
    NoText,
    Unreadable,
    digest_of,
    document_places,
    files_under,
    is_gone,
    read_changes,
    reading,
)
from legato.retrieval.manifest import Manifest, unit_vectors
from legato.retrieval.models import Encoder
from legato.retrieval.records import Commit, Document, DocumentRecord, FileDocuments, FileRecord, Passage, VectorArray
from legato.retrieval.store import Store

BATCH: Final = 20_000  # passages of a commit at most
PERIOD: Final = 30.0  # seconds between two commits
ENCODED: Final = 512  # texts that an encoder is given at once at most
FIRST: Final = 16  # … and at least, where it is slow, or its speed not known yet
ENCODING: Final = 5.0  # seconds that it should take for those
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
    unread: int = 0  # files that could not be read, or hold no text
    skipped: list[str] = field(default_factory=list)  # why those, and others, were left out
    refused: list[str] = field(default_factory=list)  # … of those that were named themselves, and not their folder
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
        self.vectors: list[VectorArray] = []  # of the commit's first passages
        self.encoded = 0  # how many those are
        self.at_once = FIRST  # texts that the encoder is given
        self.last = time.monotonic()  # when there was a commit
        # The file whose documents are being written, without a hash: a commit in its middle is known by that.
        self.begun: FileRecord | None = None
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
            self._write_if_due()
            try:
                self._file(source, path, known.get(source))
            except Unreadable as problem:
                self.report.unread += 1
                stays = source in known and not isinstance(problem, NoText)
                told = f"; what the index holds of it stays: --remove {shlex.quote(source)} takes it out"
                named = places and path in roots.values()
                lines = self.report.refused if named else self.report.skipped
                lines.append(f"{problem}{told if stays else ''}")
                if source in known and not stays:
                    left.add(source)
        for source in sorted(left):
            self._remove_file(source)
        if not found and not self.there:
            raise DataError(f"there is no document in {brief(', '.join(map(str, places)))}; name files or folders")
        if self.manifest.documents == 0 and not self.there:
            reasons = self.report.refused or self.report.skipped or ["no document is left in it"]
            raise DataError(f"there is nothing to index: {reasons[-1]}")
        self.manifest.complete = True
        self._write()
        self._merge()
        if self.report.added or self.report.changed or self.report.removed:
            self.store.finish(self.manifest)
        self.report.skipped = [str(DataError(line)) for line in self.report.skipped]  # names may hold anything
        for line in [*self.report.skipped, *self.report.refused[:-1]]:
            warn(line)
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
        for place in document_places(places):
            path = Path(os.path.realpath(place))
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
        """Bring what the index holds of a file up to date."""
        with reading(path):
            record, documents, old = self._read(source, path, known)
        state = self.begun = FileRecord(source, "", 0, 0)
        try:
            for document in documents:
                self._write_if_due()
                before = old.pop(document.key, None)
                with reading(path):
                    digest = _digest(document)
                    same = before is not None and before.digest == digest
                    chunks = [] if same else list(chunks_of(document, self.manifest.chunking))
                if same:
                    self.report.unchanged += 1
                else:
                    self._document(source, document, chunks, digest, before)
            for gone in old.values():
                self._remove_document(gone)
                self.report.removed += 1
            state = record
        finally:
            self.begun = None
            if state != known:
                self.commit.files.append(state)

    def _read(
        self, source: str, path: Path, known: FileRecord | None
    ) -> tuple[FileRecord, list[Document], dict[str, DocumentRecord]]:
        """A file as it is now, what is new in it, and what the index holds of it beside what is as it was."""
        try:
            source.encode()
        except UnicodeEncodeError:
            raise DataError(f"{brief(source)}: its name is no text; rename it") from None
        state = path.stat()
        check_regular(path, state)
        if state.st_size == 0:
            raise NoText(f"{path} is empty; there is nothing to find in it")
        if known is not None and known.digest and (known.size, known.modified) == (state.st_size, state.st_mtime_ns):
            self.report.unchanged += 1
            return known, [], {}
        digest = digest_of(path)
        # A file that was changed just now may be changed again within the same tick of the clock: no time for it.
        settled = time.time_ns() - state.st_mtime_ns > FRESH
        record = FileRecord(source, digest, state.st_size, state.st_mtime_ns if settled else 0)
        if known is not None and known.digest == digest:
            self.report.unchanged += 1
            return record, [], {}
        before = self.store.documents(source) if self.there else FileDocuments(source)
        documents, kept = read_changes(path, self.manifest.column, before)  # all of them, or none
        self.report.unchanged += len(kept)
        return record, documents, before.without(kept)

    def _remove_file(self, source: str) -> None:
        for gone in self.store.documents(source).without().values():
            self._remove_document(gone)
            self.report.removed += 1
        self.commit.removed_files.append(source)

    # --- documents ---------------------------------------------------------------------------------

    def _document(
        self, source: str, document: Document, chunks: Sequence[Chunk], digest: str, before: DocumentRecord | None
    ) -> None:
        if before is not None:
            self._remove_document(before)
        first = self.manifest.next_passage
        name = f"{source}#{document.key}" if document.key else source
        for chunk in chunks:
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
        self._encode()

    def _remove_document(self, gone: DocumentRecord) -> None:
        self.commit.removed_documents.append(gone)
        self.manifest.passages -= gone.count
        self.manifest.documents -= 1

    # --- commits -----------------------------------------------------------------------------------

    def _write_if_due(self) -> None:
        due = len(self.commit.passages) >= BATCH or time.monotonic() - self.last > PERIOD
        if due and self.commit != Commit():
            self._write()

    def _write(self) -> None:
        commit = self.commit
        if self.begun is not None:
            commit.files.append(self.begun)
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
            commit.vectors = self._vectors()
        if not self.there:
            self.store.create(self.manifest.without_passages())
            self.there = True
        self.store.write(commit, self.manifest)
        self.commit, self.last = Commit(), time.monotonic()

    def _encode(self, least: int | None = None) -> None:
        """Make the vectors that are missing, as long as those of `least` passages are: of a whole call's."""
        while self.encoder is not None:
            passages = self.commit.passages[self.encoded : self.encoded + self.at_once]
            if len(passages) < (self.at_once if least is None else least):
                return
            begun = time.monotonic()
            self.vectors.append(unit_vectors(self.encoder.encode([one.searched_text for one in passages])))
            speed = len(passages) / max(time.monotonic() - begun, 1e-3)
            self.encoded += len(passages)
            self.progress(len(passages))
            self.at_once = max(FIRST, min(ENCODED, int(speed * ENCODING)))

    def _vectors(self) -> VectorArray | None:
        """The vectors of the commit's passages."""
        if self.encoder is None:
            self.progress(len(self.commit.passages))
            return None
        self._encode(least=1)
        vectors, self.vectors, self.encoded = np.concatenate(self.vectors), [], 0
        return vectors

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
