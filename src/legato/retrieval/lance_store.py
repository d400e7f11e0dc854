"""An index in one folder, kept by LanceDB.

    index.json                            the manifest
    passages.lance  postings.lance  documents.lance  files.lance

A table of Lance's keeps its versions. The manifest names one of each table; it is written last, and replaced in one
step. So whoever is killed in the middle leaves the old index whole: what was written beyond those versions is not
seen, and the next writer goes back to them first.
"""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any, Final

import numpy as np

from legato.errors import FolderError, LegatoError, brief, is_panic, panics_unprinted
from legato.folders import locks
from legato.input_files import near_path, path_of, read_bytes
from legato.output_files import replacing_file
from legato.registry import require_extra
from legato.retrieval.bm25 import IntArray, Posting
from legato.retrieval.manifest import Manifest, read_manifest
from legato.retrieval.records import (
    Commit,
    FileDocuments,
    FileRecord,
    Filter,
    Passage,
    VectorArray,
    facets_of,
)
from legato.retrieval.store import FLAT, PROBED, pack, unpack

MANIFEST: Final = "index.json"
LOCK: Final = ".lock"
TABLES: Final = ("passages", "postings", "documents", "files")
MAX_MANIFEST: Final = 1 << 26
MANY: Final = 2000  # values in one condition
FRAGMENTS: Final = 24  # files of a table beyond which they are made into fewer
KEPT: Final = timedelta(hours=1)  # how long versions stay for those who read them
ALL: Final = (1 << 31) - 1  # rows


class LanceStore:
    """The tables of an index in a folder."""

    def __init__(self, place: str | Path) -> None:
        self.folder = path_of(place, error=FolderError)
        self.place = str(place)
        self._db: Any = None
        self._tables: dict[str, Any] = {}
        self._versions: dict[str, int] = {}
        self._read: set[str] = set()  # what was read without a panic

    # --- the folder --------------------------------------------------------------------------------

    def manifest(self) -> Manifest | None:
        file = self.folder / MANIFEST
        if not self.folder.is_dir():
            if self.folder.exists():
                raise FolderError(f"{self.folder} is a file; an index is a folder")
            return None
        if not file.exists():
            return None
        found = read_manifest(read_bytes(file, MAX_MANIFEST, error=FolderError), str(self.folder))
        if set(found.versions) != set(TABLES):
            raise FolderError(f"{self.folder} is damaged: {MANIFEST} does not name its tables; make the index again")
        self._versions = dict(found.versions)
        self._tables = {}
        return found

    def missing(self) -> FolderError:
        """What to say where there is no index."""
        near = near_path(self.folder, folder=True)
        meant = f"; did you mean '{near}'?" if near is not None and not self.folder.exists() else ""
        return FolderError(
            f"{self.folder} is no index: it has no {MANIFEST}{meant or '; make one with legato index'}"
        )

    @contextmanager
    def locked(self) -> Iterator[None]:
        self.folder.mkdir(parents=True, exist_ok=True)
        try:
            handle = locks.hold(self.folder / LOCK)
        except locks.Held:
            raise FolderError(f"{self.folder} is being written by another process; wait until it is done") from None
        try:
            yield
        finally:
            left = set(os.listdir(self.folder))
            if not left & {MANIFEST, *(f"{name}.lance" for name in TABLES)}:  # nothing came of it
                (self.folder / LOCK).unlink(missing_ok=True)
                if left <= {LOCK}:
                    self.folder.rmdir()
            locks.let_go(handle)

    def create(self, manifest: Manifest) -> None:
        ours = {LOCK, *(f"{name}.lance" for name in TABLES)}
        others = sorted(name for name in os.listdir(self.folder) if name not in ours and not name.startswith(".new-"))
        if others:
            raise FolderError(
                f"{self.folder} holds other files ({brief(others[0])}); name a new folder for the index"
            )
        import pyarrow as pa

        text, number, raw = pa.string(), pa.int64(), pa.binary()
        columns: dict[str, list[tuple[str, Any]]] = {
            "passages": [
                *(("id", number), ("source", text), ("title", text), ("heading", text), ("page", number)),
                *(("start", number), ("end", number), ("text", text), ("metadata", text)),
                *(("facets", pa.list_(text)), ("length", number)),
            ],
            "postings": [("term", text), ("segment", number), ("ids", raw), ("counts", raw)],
            "documents": [("source", text), ("key", text), ("digest", text), ("first", number), ("count", number)],
            "files": [("source", text), ("digest", text), ("size", number), ("modified", number)],
        }
        if manifest.encoder is not None:
            columns["passages"].append(("vector", pa.list_(pa.float32(), manifest.encoder.width)))
        with self._clear("made"):
            for name, schema in columns.items():
                self._tables[name] = self._connect().create_table(name, schema=pa.schema(schema), mode="overwrite")
        self._save(manifest)

    def _save(self, manifest: Manifest) -> None:
        manifest.versions = {name: int(self._tables[name].version) for name in TABLES}
        with replacing_file(self.folder / MANIFEST) as fresh:
            fresh.write_text(manifest.model_dump_json(), encoding="utf-8")
        self._versions = dict(manifest.versions)

    def _connect(self) -> Any:
        if self._db is None:
            os.environ.setdefault("LANCEDB_LOG", "error")
            lancedb = require_extra("retrieval", "lancedb")
            self._check_files()
            self._db = lancedb.connect(str(self.folder))
        return self._db

    def _check_files(self) -> None:
        """Refuse what is no file: the library would wait for a pipe's writer without end, and follow any link."""
        for folder, folders, files in os.walk(self.folder):
            for name in (*folders, *files):
                path = Path(folder, name)
                if not stat.S_ISREG(mode := path.lstat().st_mode) and not stat.S_ISDIR(mode):
                    raise FolderError(f"{self.folder} is damaged: {path} is no regular file; make the index again")

    def _open(self, name: str) -> Any:
        with panics_unprinted():  # they come of damaged files
            return self._connect().open_table(name)

    def _table(self, name: str) -> Any:
        """A table as the manifest names it, to read."""
        if name not in self._tables:
            with self._clear("read"):
                table = self._open(name)
                table.checkout(self._versions[name])
                self._tables[name] = table
        return self._tables[name]

    @contextmanager
    def _clear(self, what: str, first: str | None = None) -> Iterator[None]:
        """What the library raises, in one line; what it prints of it is dropped in the `first` of a kind of read."""
        try:
            if first is None or first in self._read:
                yield
            else:
                with panics_unprinted():
                    yield
                self._read.add(first)
        except (LegatoError, KeyboardInterrupt, SystemExit, GeneratorExit, MemoryError):
            raise
        except BaseException as problem:
            if not isinstance(problem, Exception) and not is_panic(problem):
                raise
            if isinstance(problem, OSError) and problem.errno is not None and what == "made":
                raise
            reason = brief(str(problem).split("\n")[0], 140)
            raise FolderError(
                f"{self.folder} cannot be {what}, or is damaged ({reason}); make the index again"
            ) from None

    # --- writing -----------------------------------------------------------------------------------

    def write(self, commit: Commit, manifest: Manifest) -> None:
        with self._clear("written"):
            self._go_back()
            removed = [n for one in commit.removed_documents for n in range(one.first, one.first + one.count)]
            self._delete("passages", "id", removed)
            for source in {one.source for one in commit.removed_documents}:
                keys = [one.key for one in commit.removed_documents if one.source == source]
                self._delete("documents", "key", keys, f"source = {_quoted(source)} AND ")
            self._delete("files", "source", [*commit.removed_files, *(one.source for one in commit.files)])
            self._delete("postings", "segment", commit.merged)
            self._add("passages", [_passage_row(one) for one in commit.passages], commit.vectors)
            self._add("documents", [vars(one) for one in commit.documents])
            self._add("files", [vars(one) for one in commit.files])
            rows = []
            for term, posting in commit.postings.items():
                ids, counts = pack(posting)
                rows.append({"term": term, "segment": commit.segment, "ids": ids, "counts": counts})
            self._add("postings", rows)
        self._save(manifest)

    def _go_back(self) -> None:
        """To what the manifest names, whatever somebody who was killed has written since; then to write."""
        for name in TABLES:
            table = self._tables.get(name) or self._open(name)
            table.checkout_latest()
            if int(table.version) != self._versions[name]:
                table.checkout(self._versions[name])
                table.restore()
            self._tables[name] = table

    def _add(self, name: str, rows: Sequence[dict[str, Any]], vectors: VectorArray | None = None) -> None:
        if not rows:
            return
        import pyarrow as pa

        table = self._tables[name]
        schema = table.schema
        made = [pa.array([row[field.name] for row in rows], field.type) for field in schema if field.name != "vector"]
        if vectors is not None:
            flat = pa.array(np.ascontiguousarray(vectors).ravel(), pa.float32())
            made.append(pa.FixedSizeListArray.from_arrays(flat, vectors.shape[1]))
        table.add(pa.table(made, schema=schema))

    def _delete(self, name: str, column: str, values: Sequence[Any], condition: str = "") -> None:
        for start in range(0, len(values), MANY):
            some = ", ".join(_quoted(value) for value in values[start : start + MANY])
            self._tables[name].delete(f"{condition}{column} IN ({some})")

    def finish(self, manifest: Manifest) -> None:
        from lancedb.index import BTree, IvfFlat, LabelList

        with self._clear("written"):
            self._go_back()
            for name in TABLES:
                table = self._tables[name]
                known = {column for index in table.list_indices() for column in index.columns}
                if known and int(table.stats()["fragment_stats"]["num_fragments"]) > FRAGMENTS:
                    table.optimize(cleanup_older_than=KEPT)
                rows = table.count_rows()
                if name == "passages" and manifest.encoder is not None and rows > FLAT and "vector" not in known:
                    clusters = int(np.sqrt(rows))
                    table.create_index("vector", config=IvfFlat(distance_type="cosine", num_partitions=clusters))
                wanted: dict[str, dict[str, Any]] = {
                    "passages": {"id": BTree(), "facets": LabelList()},
                    "postings": {"term": BTree()},
                }
                for column, config in wanted.get(name, {}).items():
                    if column not in known and rows:
                        table.create_index(column, config=config)
        self._save(manifest)

    # --- reading -----------------------------------------------------------------------------------

    def _rows(self, name: str, columns: list[str], condition: str | None = None) -> Any:
        query = self._table(name).search().select(columns).limit(ALL)
        with self._clear("read", f"{name} {condition is None}"):
            return (query if condition is None else query.where(condition)).to_arrow()

    def files(self) -> dict[str, FileRecord]:
        rows = self._rows("files", ["source", "digest", "size", "modified"]).to_pylist()
        return {row["source"]: FileRecord(**row) for row in rows}

    def documents(self, source: str) -> FileDocuments:
        columns = ["key", "digest", "first", "count"]
        rows = self._rows("documents", columns, f"source = {_quoted(source)}")
        return FileDocuments(source, *(rows[name].to_pylist() for name in columns))

    def lengths(self) -> tuple[IntArray, IntArray]:
        found = self._rows("passages", ["id", "length"])
        return found["id"].to_numpy().astype(np.int64), found["length"].to_numpy().astype(np.int64)

    def postings(self, terms: Sequence[str]) -> dict[str, list[Posting]]:
        some = ", ".join(_quoted(term) for term in terms)
        found = self._rows("postings", ["term", "ids", "counts"], f"term IN ({some})")
        held: dict[str, list[Posting]] = {}
        with self._clear("read"):
            for row in found.to_pylist():
                held.setdefault(row["term"], []).append(unpack(row["ids"], row["counts"]))
        return held

    def segment(self, number: int) -> dict[str, Posting]:
        rows = self._rows("postings", ["term", "ids", "counts"], f"segment = {number}").to_pylist()
        with self._clear("read"):
            return {row["term"]: unpack(row["ids"], row["counts"]) for row in rows}

    def nearest(self, vector: VectorArray, count: int, where: Filter) -> list[tuple[int, float]]:
        table = self._table("passages")
        with self._clear("read", "nearest"):
            query = table.search(vector, vector_column_name="vector").distance_type("cosine").nprobes(PROBED)
            if where:
                query = query.where(_condition(where), prefilter=True)
            found = query.select(["id", "_distance"]).limit(count).to_arrow()
            return [
                (int(n), 1 - float(d))
                for n, d in zip(found["id"].to_pylist(), found["_distance"].to_pylist(), strict=True)
            ]

    def matching(self, where: Filter) -> IntArray:
        found: IntArray = self._rows("passages", ["id"], _condition(where))["id"].to_numpy().astype(np.int64)
        return found

    def passages(self, numbers: Sequence[int]) -> dict[int, Passage]:
        if not numbers:
            return {}
        columns = ["id", "source", "title", "heading", "page", "start", "end", "text", "metadata", "length"]
        rows = self._rows("passages", columns, f"id IN ({', '.join(map(str, numbers))})").to_pylist()
        with self._clear("read"):
            made = [Passage(**{**row, "metadata": json.loads(row["metadata"])}) for row in rows]
        return {passage.id: passage for passage in made}

    def close(self) -> None:
        self._tables, self._db = {}, None


def _passage_row(passage: Passage) -> dict[str, Any]:
    metadata = json.dumps(passage.metadata, ensure_ascii=False)
    return {**vars(passage), "metadata": metadata, "facets": facets_of(passage)}


def _condition(where: Filter) -> str:
    """A filter as Lance's SQL; whatever the values say stays inside their quotes."""
    parts = []
    for key, values in where.items():
        some = ", ".join(_quoted(f"{key}={value}") for value in values)
        parts.append(f"array_has_any(facets, [{some}])")
    return " AND ".join(parts)


def _quoted(value: Any) -> str:
    if isinstance(value, int):
        return str(value)
    return "'" + str(value).replace("'", "''") + "'"
