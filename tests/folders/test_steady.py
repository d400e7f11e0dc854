"""Reading while a folder is replaced: one version, or one line."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

import legato
from legato.errors import FolderError
from legato.folders import atomic, model_folder, shards, steady
from legato.folders.atomic import OLD, replacing
from legato.folders.finding import find_model
from legato.folders.model_folder import load_model, read_model
from legato.folders.steady import find_and_read, read_steadily
from legato.output_files import NEW
from tiny_runs import small


def write_version(place: Path, version: int) -> None:
    with replacing(place) as fresh:
        for name in ("a.txt", "b.txt"):
            (fresh / name).write_text(str(version))


@pytest.fixture
def place(tmp_path: Path) -> Path:
    write_version(tmp_path / "best", 1)
    return tmp_path / "best"


def test_what_is_read_is_of_one_version(place: Path) -> None:
    versions = iter((2, 3))

    def read(folder: Path) -> tuple[str, str]:
        first = (folder / "a.txt").read_text()
        if (version := next(versions, None)) is not None:
            write_version(place, version)
        return first, (folder / "b.txt").read_text()

    assert read_steadily(place, read) == ("3", "3")


def test_what_is_missing_while_a_folder_is_replaced_is_read_again(place: Path) -> None:
    aside, steps = place.with_name(f"{OLD}best"), iter(("the first rename", "the second"))

    def read(folder: Path) -> str:
        step = next(steps, None)  # where folders cannot be exchanged
        if step == "the first rename":
            place.rename(aside)
        if step == "the second":
            aside.rename(place)
        return (folder / "a.txt").read_text()

    assert find_and_read(place, lambda: place if place.exists() else aside, read) == "1"
    assert next(steps, None) is None


def test_a_fault_of_a_folder_that_stays_is_told_at_once(place: Path) -> None:
    calls = []

    def fail(folder: Path) -> None:
        calls.append(folder)
        raise FolderError("it is damaged")

    with pytest.raises(FolderError, match="it is damaged"):
        read_steadily(place, fail)
    assert len(calls) == 1


@pytest.mark.parametrize("there", [True, False])
def test_a_folder_that_never_stays_is_one_line(there: bool, place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(steady, "PATIENCE", 0.0)
    versions = iter(range(100))

    def read(folder: Path) -> None:
        write_version(place, next(versions))
        if not there:
            raise FolderError("it lacks something")

    with pytest.raises(FolderError, match=f"{place} was replaced again and again while it was read"):
        read_steadily(place, read)


def test_a_folder_that_is_not_there_is_told_at_once(tmp_path: Path) -> None:
    with pytest.raises(FolderError, match=r"it has no config\.json"):
        load_model(tmp_path / "none")
    with pytest.raises(FolderError, match="there is no folder"):
        read_model(tmp_path / "none")


def test_a_name_that_no_folder_has_is_one_line() -> None:
    with pytest.raises(FolderError, match="a zero byte is in no file's name"):
        read_model("a\0b")
    with pytest.raises(FolderError, match="it is damaged"):
        read_steadily(Path("a\0b"), lambda folder: (_ for _ in ()).throw(FolderError("it is damaged")))


def test_a_folder_in_somebody_s_home_is_watched_where_it_is(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    looked: list[Path] = []
    monkeypatch.setenv("HOME", str(place.parent))
    monkeypatch.setattr(steady, "identity", looked.append)
    with pytest.raises(FolderError):
        read_model("~/best")
    assert looked[:2] == [place.parent, place]


# ── a model ───────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Two runs whose models differ in everything."""
    with pytest.MonkeyPatch.context() as patch:
        folder = tmp_path_factory.mktemp("runs")
        patch.setenv("LEGATO_CACHE", str(folder / "cache"))
        kinds: list[dict[str, Any]] = [{}, {"model__width": 24, "tokenizer": "byte", "seed": 5}]
        return [
            legato.train("lm", small(folder, **kind, train__steps=2), out=folder / str(number), quiet=True).run
            for number, kind in enumerate(kinds)
        ]


@pytest.fixture
def replaced(runs: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A run whose best model is replaced after its tokenizer was read, and before its weights are."""
    run = tmp_path / "run"
    shutil.copytree(runs[0], run)
    real, done = model_folder.load_weights, []

    def load_weights(folder: Path) -> Any:
        if not done:
            done.append(True)
            with replacing(run / "best") as fresh:
                shutil.copytree(runs[1] / "best", fresh, dirs_exist_ok=True)
        return real(folder)

    monkeypatch.setattr(model_folder, "load_weights", load_weights)
    return run


@pytest.mark.parametrize("below", [".", "best"])
@pytest.mark.parametrize("at_once", [True, False])
def test_a_model_that_is_replaced_while_it_is_loaded_is_one_of_the_two(
    below: str, at_once: bool, replaced: Path, runs: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    if not at_once:
        monkeypatch.setattr(atomic, "exchange", lambda *_: False)
    model, whole = legato.load(replaced / below, "cpu"), legato.load(runs[1], "cpu")
    assert model.module.config == whole.module.config
    assert model.tokenizer.size == whole.tokenizer.size
    assert model.generate("the ", max_tokens=5) == whole.generate("the ", max_tokens=5)


def test_a_model_that_a_kill_left_under_its_other_name_is_found(runs: list[Path], tmp_path: Path) -> None:
    run = tmp_path / "run"
    shutil.copytree(runs[0], run)
    (run / "best").rename(run / f"{OLD}best")
    (run / f"{NEW}best").mkdir()
    assert find_model(run) == run / f"{OLD}best"
    assert find_model(run / "best") == run / f"{OLD}best"
    assert shards.WEIGHTS in {path.name for path in read_model(run / "best").folder.iterdir()}
