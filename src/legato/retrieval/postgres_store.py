"""An index in PostgreSQL with pgvector: `postgresql://user@host/database#name`.

The tables stand in a schema of that name, "legato" where it is left out. A commit is a transaction, so whoever reads
sees whole ones. A database that cannot be reached is tried again for some seconds; a commit that was cut off is
written again as a whole, and what is written twice stands once.
"""

from __future__ import annotations

import json
import re
import time
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, Final, TypeVar

import numpy as np

from legato.errors import ConfigError, FolderError, LegatoError, brief
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

WAITS: Final = (0.5, 1.0, 2.0)  # seconds before it is tried again
TIMEOUT: Final = 5  # seconds to connect
STALE: Final = 0.1  # share by which documents may have become more or fewer since statistics were made
NAME: Final = re.compile(r"[a-z_][a-z0-9_]{0,40}")
PASSWORD: Final = re.compile(r"(?<=://)([^:/@]*):[^@/]*@|(?<=[?&])password=[^&]*")
FIELDS: Final = ("id", "source", "title", "heading", "page", "start", "end", "text", "metadata", "length")
COLUMNS: Final = ", ".join(FIELDS).replace("end", "stop")  # the former is a word of SQL

Result = TypeVar("Result")


class PostgresStore:
    """The tables of an index in a database."""

    def __init__(self, place: str) -> None:
        self.address, _, name = place.partition("#")
        self.name = name or "legato"
        self.place = PASSWORD.sub(lambda found: f"{found[1]}@" if found[1] is not None else "password=…", place)
        if NAME.fullmatch(self.name) is None or self.name.startswith("pg_"):
            raise ConfigError(f"#{brief(self.name)} is no name for an index: use small letters, digits and _")
        self._library = require_extra("retrieval", "psycopg")
        self._connection: Any = None

    # --- the connection ----------------------------------------------------------------------------

    def _connect(self) -> Any:
        if self._connection is None or self._connection.closed:
            self._connection = self._library.connect(self.address, autocommit=True, connect_timeout=TIMEOUT)
        return self._connection

    def _retried(self, work: Callable[[Any], Result]) -> Result:
        """What `work` makes of a connection; where that is lost it is made again, and so is the work."""
        problem: Exception = FolderError(self.place)
        for wait in (*WAITS, None):
            try:
                return work(self._connect())
            except (self._library.OperationalError, self._library.InterfaceError) as lost:
                problem = lost
                self.close()
                if wait is not None:
                    time.sleep(wait)
            except self._library.Error as wrong:
                raise self._explained(wrong) from None
            except UnicodeError:
                raise ConfigError(f"{brief(self.place)} is no address of a database") from None
        reason = brief(PASSWORD.sub("…", str(problem)).strip().splitlines()[-1] if str(problem).strip() else "", 160)
        raise FolderError(
            f"the database {brief(self.place, 80)} cannot be reached ({reason}); what was committed is kept: start "
            "it, and run this again"
        )

    def _explained(self, problem: Exception) -> LegatoError:
        reason = brief(str(problem).strip().split("\n")[0], 160)
        if isinstance(problem, self._library.ProgrammingError) and "conn" in reason and self._connection is None:
            return ConfigError(f"{brief(self.place)} is no address of a database: {reason}")
        return FolderError(f"the index {brief(self.place, 80)} cannot be used, or is damaged ({reason})")

    def _rows(self, query: str, values: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        return self._retried(lambda connection: connection.execute(query, values).fetchall())

    # --- the index ---------------------------------------------------------------------------------

    def manifest(self) -> Manifest | None:
        if self._rows("SELECT to_regclass(%s)", [f"{self.name}.manifest"])[0][0] is None:
            return None
        rows = self._rows(f"SELECT content FROM {self.name}.manifest")
        return read_manifest(rows[0][0], self.place) if rows else None

    def missing(self) -> FolderError:
        return FolderError(f"{self.place} holds no index; make one with legato index --out")

    @contextmanager
    def locked(self) -> Iterator[None]:
        # On a connection of its own: the lock ends with whoever holds it.
        number = zlib.crc32(f"legato {self.name}".encode())
        keeper = self._retried(
            lambda _: self._library.connect(self.address, autocommit=True, connect_timeout=TIMEOUT)
        )
        with keeper:
            if not keeper.execute("SELECT pg_try_advisory_lock(%s)", [number]).fetchone()[0]:
                raise FolderError(f"{self.place} is being written by another process; wait until it is done")
            try:
                yield
            finally:  # the database would release it, too, but some time after the connection has ended
                with suppress(self._library.Error):
                    keeper.execute("SELECT pg_advisory_unlock(%s)", [number])

    def create(self, manifest: Manifest) -> None:
        name, text = self.name, manifest.model_dump_json()
        vector = "" if manifest.encoder is None else f", vector vector({manifest.encoder.width})"

        def make(connection: Any) -> None:
            with connection.transaction():
                if manifest.encoder is not None:
                    connection.execute("CREATE EXTENSION IF NOT EXISTS vector")
                connection.execute(f"CREATE SCHEMA IF NOT EXISTS {name}")
                connection.execute(f"CREATE TABLE {name}.manifest (content text NOT NULL)")
                connection.execute(
                    f"CREATE TABLE {name}.passages (id bigint PRIMARY KEY, source text, title text, heading text, "
                    f"page bigint, start bigint, stop bigint, text text, metadata text, facets text[], length bigint"
                    f"{vector})"
                )
                connection.execute(f"CREATE INDEX ON {name}.passages USING gin (facets)")
                connection.execute(
                    f"CREATE TABLE {name}.postings (term text, segment bigint, ids bytea, counts bytea, "
                    "PRIMARY KEY (term, segment))"
                )
                connection.execute(
                    f"CREATE TABLE {name}.documents (source text, key text, digest text, first bigint, count bigint, "
                    "PRIMARY KEY (source, key))"
                )
                connection.execute(
                    f"CREATE TABLE {name}.files (source text PRIMARY KEY, digest text, size bigint, modified bigint)"
                )
                connection.execute(f"INSERT INTO {name}.manifest VALUES (%s)", [text])

        self._retried(make)

    # --- writing -----------------------------------------------------------------------------------

    def write(self, commit: Commit, manifest: Manifest) -> None:
        name, text = self.name, manifest.model_dump_json()
        removed = [n for one in commit.removed_documents for n in range(one.first, one.first + one.count)]
        removed += [one.id for one in commit.passages]
        segments = [*commit.merged, *([] if commit.segment is None else [commit.segment])]
        gone = [*commit.removed_files, *(one.source for one in commit.files)]

        def work(connection: Any) -> None:
            with connection.transaction(), connection.cursor() as cursor:
                cursor.execute(f"DELETE FROM {name}.passages WHERE id = ANY(%s)", [removed])
                cursor.executemany(
                    f"DELETE FROM {name}.documents WHERE source = %s AND key = %s",
                    [(one.source, one.key) for one in (*commit.removed_documents, *commit.documents)],
                )
                cursor.execute(f"DELETE FROM {name}.files WHERE source = ANY(%s)", [gone])
                cursor.execute(f"DELETE FROM {name}.postings WHERE segment = ANY(%s)", [segments])
                _copy(cursor, f"{name}.passages", _passage_rows(commit))
                _copy(cursor, f"{name}.documents", (tuple(vars(one).values()) for one in commit.documents))
                _copy(cursor, f"{name}.files", (tuple(vars(one).values()) for one in commit.files))
                packed = ((term, commit.segment, *pack(posting)) for term, posting in commit.postings.items())
                _copy(cursor, f"{name}.postings", packed)
                cursor.execute(f"UPDATE {name}.manifest SET content = %s", [text])

        self._retried(work)

    def finish(self, manifest: Manifest) -> None:
        name = self.name

        def work(connection: Any) -> None:
            many = manifest.encoder is not None and manifest.passages > FLAT
            if many and connection.execute("SELECT to_regclass(%s)", [f"{name}.vectors"]).fetchone()[0] is None:
                with connection.transaction():
                    connection.execute("SET LOCAL maintenance_work_mem = '512MB'")
                    lists = int(np.sqrt(manifest.passages))
                    connection.execute(
                        f"CREATE INDEX vectors ON {name}.passages USING ivfflat (vector vector_cosine_ops) "
                        f"WITH (lists = {lists})"
                    )
            query = (
                "SELECT reltuples, EXISTS (SELECT FROM pg_stats WHERE schemaname = %s AND tablename = 'documents') "
                "FROM pg_class WHERE oid = to_regclass(%s)"
            )
            known, analysed = connection.execute(query, [name, f"{name}.documents"]).fetchone()
            if not analysed or abs(manifest.documents - known) > STALE * manifest.documents:
                for table in ("passages", "postings", "documents", "files"):
                    connection.execute(f"ANALYZE {name}.{table}")

        self._retried(work)

    # --- reading -----------------------------------------------------------------------------------

    def files(self) -> dict[str, FileRecord]:
        rows = self._rows(f"SELECT source, digest, size, modified FROM {self.name}.files")
        return {row[0]: FileRecord(*row) for row in rows}

    def documents(self, source: str) -> FileDocuments:
        rows = self._rows(f"SELECT key, digest, first, count FROM {self.name}.documents WHERE source = %s", [source])
        return FileDocuments(source, *zip(*rows, strict=True))

    def lengths(self) -> tuple[IntArray, IntArray]:
        rows = np.array(self._rows(f"SELECT id, length FROM {self.name}.passages"), dtype=np.int64).reshape(-1, 2)
        return rows[:, 0], rows[:, 1]

    def postings(self, terms: Sequence[str]) -> dict[str, list[Posting]]:
        query = f"SELECT term, ids, counts FROM {self.name}.postings WHERE term = ANY(%b)"
        held: dict[str, list[Posting]] = {}
        for term, ids, counts in self._binary(query, [list(terms)]):
            held.setdefault(term, []).append(unpack(ids, counts))
        return held

    def _binary(self, query: str, values: Sequence[Any]) -> list[tuple[Any, ...]]:
        """Rows whose bytes come as they are, not spelled."""
        return self._retried(lambda connection: connection.cursor(binary=True).execute(query, values).fetchall())

    def segment(self, number: int) -> dict[str, Posting]:
        query = f"SELECT term, ids, counts FROM {self.name}.postings WHERE segment = %s"
        return {term: unpack(ids, counts) for term, ids, counts in self._binary(query, [number])}

    def nearest(self, vector: VectorArray, count: int, where: Filter) -> list[tuple[int, float]]:
        condition, values = _condition(where)
        asked = _spelled(vector)
        query = (
            f"SELECT id, 1 - (vector <=> %s::vector) FROM {self.name}.passages{condition} "
            "ORDER BY vector <=> %s::vector LIMIT %s"
        )

        def work(connection: Any) -> list[tuple[int, float]]:
            with connection.transaction():
                connection.execute(f"SET LOCAL ivfflat.probes = {PROBED}")
                connection.execute("SET LOCAL ivfflat.iterative_scan = relaxed_order")  # where a filter leaves few
                found = connection.execute(query, [asked, *values, asked, count]).fetchall()
            return sorted(((int(n), float(score)) for n, score in found), key=lambda one: -one[1])

        return self._retried(work)

    def matching(self, where: Filter) -> IntArray:
        condition, values = _condition(where)
        rows = self._rows(f"SELECT id FROM {self.name}.passages{condition}", values)
        return np.array([row[0] for row in rows], dtype=np.int64)

    def passages(self, numbers: Sequence[int]) -> dict[int, Passage]:
        query = f"SELECT {COLUMNS} FROM {self.name}.passages WHERE id = ANY(%s)"
        rows = self._rows(query, [list(numbers)])
        made = [Passage(**{**dict(zip(FIELDS, row, strict=True)), "metadata": json.loads(row[8])}) for row in rows]
        return {passage.id: passage for passage in made}

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None


def _copy(cursor: Any, table: str, rows: Iterable[tuple[Any, ...]]) -> None:
    with cursor.copy(f"COPY {table} FROM STDIN") as copy:
        for row in rows:
            copy.write_row(row)


def _passage_rows(commit: Commit) -> Iterator[tuple[Any, ...]]:
    for number, one in enumerate(commit.passages):
        metadata = json.dumps(one.metadata, ensure_ascii=False)
        where = (one.id, one.source, one.title, one.heading, one.page, one.start, one.end, one.text)
        row = (*where, metadata, facets_of(one), one.length)
        yield row if commit.vectors is None else (*row, _spelled(commit.vectors[number]))


def _spelled(vector: VectorArray) -> str:
    """A vector as pgvector reads it; enough digits to be the same float32 again."""
    return "[" + ",".join([f"{value:.9g}" for value in vector.tolist()]) + "]"


def _condition(where: Filter) -> tuple[str, list[list[str]]]:
    if not where:
        return "", []
    values = [[f"{key}={value}" for value in some] for key, some in where.items()]
    return " WHERE " + " AND ".join("facets && %s" for _ in values), values
