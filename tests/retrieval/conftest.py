"""Each store that an index can be kept in."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from retrieval.stores import Place, start_database
from tiny_documents import WordEncoder, write_documents

NAMES = itertools.count()


@pytest.fixture(scope="session")
def database(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a database that ends with the tests."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_RUNTIME_DIR", str(tmp_path_factory.mktemp("runtime")))
        server = start_database(str(tmp_path_factory.mktemp("pg")))
    yield server.get_uri()
    server.cleanup()


@pytest.fixture(params=["lance", pytest.param("postgres", marks=pytest.mark.slow)])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    """Where an index goes, in either store; nothing is there yet."""
    if request.param == "lance":
        return lambda name: str(tmp_path / "stores" / name)
    address, number = request.getfixturevalue("database"), next(NAMES)
    return lambda name: f"{address}#t{number}_{name}"


@pytest.fixture
def docs(tmp_path: Path) -> Path:
    return write_documents(tmp_path / "docs")


@pytest.fixture
def encoder() -> WordEncoder:
    return WordEncoder()


@pytest.fixture(autouse=True)
def no_time_for_fresh_files(monkeypatch: pytest.MonkeyPatch) -> Any:
    """What was written just now counts as settled, as it would some seconds later."""
    monkeypatch.setattr("legato.retrieval.update.FRESH", -1)
