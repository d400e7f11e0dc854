"""A database that is down, or goes away: it is tried again, then one line says so, and nothing is lost."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

import legato.retrieval.postgres_store as postgres_store
from legato.errors import FolderError, LegatoError
from legato.retrieval.index import Index
from legato.retrieval.postgres_store import WAITS, PostgresStore
from retrieval.stores import start_database
from tiny_documents import WordEncoder

SLEEP = time.sleep


@pytest.fixture
def waits(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The seconds that were waited, which are none here."""
    waited: list[float] = []
    monkeypatch.setattr(time, "sleep", waited.append)
    return waited


@pytest.mark.parametrize(
    "address", ["postgresql://me:secret@127.0.0.1:1/x", "postgresql:///x?host=/nowhere&password=secret"]
)
def test_a_database_that_is_down_is_tried_again_and_then_said(waits: list[float], address: str) -> None:
    with pytest.raises(FolderError, match="cannot be reached") as caught:
        Index.open(address)
    assert waits == list(WAITS)
    assert "\n" not in str(caught.value)
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    "address", ["postgresql://[", "postgresql://h/x?nonsense=1", "postgresql://h:port/x", "postgresql://\0"]
)
def test_what_is_no_address_is_one_line(waits: list[float], address: str) -> None:
    with pytest.raises(LegatoError) as caught:
        Index.open(address)
    assert "\n" not in str(caught.value)


def rows(folder: Path, name: str) -> Path:
    folder.mkdir(exist_ok=True)
    for number in range(6):
        (folder / f"{name}{number}.txt").write_text(f"{name} number{number}")
    return folder


@pytest.mark.slow
def test_a_connection_that_is_cut_within_a_commit_is_made_again(
    database: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, waits: list[float]
) -> None:
    place = f"{database}#cut"
    copy, cuts = postgres_store._copy, 0

    def cut(cursor: Any, table: str, given: Any) -> None:
        nonlocal cuts
        copy(cursor, table, given)
        if table == "cut.documents" and not cuts:
            cuts += 1
            other = PostgresStore(place)
            other._rows("SELECT pg_terminate_backend(%s)", [cursor.connection.info.backend_pid])

    monkeypatch.setattr(postgres_store, "_copy", cut)
    index = Index.create(place, WordEncoder())
    index.update([rows(tmp_path / "docs", "whale")])
    assert (cuts, len(waits)) == (1, 1)
    assert len(index) == 6
    assert len({hit.passage.source for hit in index.search("whale", 50, mode="words")}) == 6


@pytest.mark.slow
def test_a_database_that_stops_within_an_update_keeps_the_index(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch, waits: list[float]
) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path_factory.mktemp("runtime")))
    folder = str(tmp_path_factory.mktemp("pg"))
    monkeypatch.setattr(time, "sleep", SLEEP)  # who starts a database waits for it
    server = start_database(folder)
    place = f"{server.get_uri()}#stopped"
    index = Index.create(place, WordEncoder())
    index.update([rows(tmp_path / "docs", "whale")])
    rows(tmp_path / "docs", "zebra")
    write = index.store.write

    def stopped(*given: Any) -> None:
        monkeypatch.undo()
        server.cleanup()
        monkeypatch.setattr(time, "sleep", waits.append)
        write(*given)

    index.store.write = stopped  # type: ignore[method-assign]
    with pytest.raises(FolderError, match="what was committed is kept"):
        index.update()
    monkeypatch.undo()
    server = start_database(folder)
    try:
        place = f"{server.get_uri()}#stopped"
        again = Index.open(place, WordEncoder())
        assert len(again) == 6
        assert len(again.search("whale", 50, mode="words")) == 6
        assert again.update().added == 6
        assert len(again) == 12
    finally:
        server.cleanup()
