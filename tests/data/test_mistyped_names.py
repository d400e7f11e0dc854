"""Names of files that are not there: said at once where they are slips, and the hub is not asked for those."""

from __future__ import annotations

import socket
import time
from pathlib import Path
from typing import Any

import pytest
from huggingface_hub import constants

from legato.data.sources import hub_access, tables
from legato.data.sources.hub_access import answers, offline_where_unreachable
from legato.data.sources.tables import locate, read_table
from legato.errors import DataError
from legato.input_files import near_path


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder, with a table in it and another below."""
    home = tmp_path / "here"
    (home / "data").mkdir(parents=True)
    for name in ("reviews.tsv", "data/train.tsv"):
        (home / name).write_text("text\tlabel\na\tb\n")
    monkeypatch.chdir(home)
    return home


def never(*_: Any) -> Any:
    raise AssertionError("the hub was asked")


@pytest.mark.parametrize(
    ("source", "meant"),
    [
        ("reviews", "reviews.tsv"),
        ("revews.tsv", "reviews.tsv"),
        ("reviews.csv", "reviews.tsv"),
        ("data/trian.tsv", "data/train.tsv"),
        ("data/train", "data/train.tsv"),
        ("dta/train.tsv", "data/train.tsv"),
        ("./reviews.tvs", "reviews.tsv"),
    ],
)
def test_a_slip_is_said_at_once(source: str, meant: str, here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tables, "_load_dataset", never)
    with pytest.raises(DataError, match=f"did you mean '{meant}'") as caught:
        read_table(source, ["text"])
    assert "\n" not in str(caught.value)


def test_a_folder_that_is_there_makes_a_name_a_files(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tables, "_load_dataset", never)
    with pytest.raises(DataError, match=r"there is no file data/squad, though its folder is there.*hub:data/squad"):
        read_table("data/squad", ["text"])


@pytest.mark.parametrize("source", ["org/name", "imdb", "hub:data/squad", "hub:reviews"])
def test_what_is_like_nothing_here_is_the_hubs(source: str, here: Path) -> None:
    assert locate(source) is None


def test_hidden_files_and_folders_are_not_suggested_for_files(here: Path) -> None:
    (here / ".notes").write_text("a")
    (here / "corpora").mkdir()
    assert near_path(Path("notes")) is None
    assert near_path(Path("corpora.")) is None
    assert near_path(Path("corpra"), folder=True) == Path("corpora")


def test_a_hub_that_does_not_answer_is_known_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "http_proxy", "https_proxy", "all_proxy"):
        monkeypatch.delenv(name, raising=False)
    with socket.create_server(("127.0.0.1", 0)) as server:
        endpoint = f"http://127.0.0.1:{server.getsockname()[1]}"
        assert answers(endpoint)
    assert not answers(endpoint)
    monkeypatch.setattr(hub_access, "PATIENCE", 0.01)
    monkeypatch.setattr(socket, "create_connection", lambda *_: time.sleep(30))  # a name server that is silent
    assert not answers(endpoint)


def test_libraries_look_into_their_caches_alone_where_the_hub_does_not_answer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(hub_access, "answers", lambda endpoint: False)
    with offline_where_unreachable():
        assert constants.HF_HUB_OFFLINE
    assert not constants.HF_HUB_OFFLINE
    monkeypatch.setattr(hub_access, "answers", lambda endpoint: True)
    with offline_where_unreachable():
        assert not constants.HF_HUB_OFFLINE
