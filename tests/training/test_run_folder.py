"""Run folders: claimed before they are looked at, and never at another's cost."""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import Any

import pytest

import legato
from legato.config import to_yaml
from legato.errors import FolderError, LegatoError
from legato.folders import locks
from legato.folders.finding import find_model
from legato.folders.locks import Held, hold, let_go
from legato.runs.config import check, dump, settings_for
from legato.runs.run_folder import LOCK, STARTING, RunFolder
from legato.training.checkpoint_files import sweep
from legato.training.checkpoints import Checkpoint, save_checkpoint
from tiny_runs import small, snapshot

SETTINGS = {"task": "lm"}


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


# ── a user's files ────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    "file",
    [
        *("notes.txt", ".hidden", "best/thesis.txt", "last/a.txt", "checkpoints/step-4/a.txt", "provenance.json"),
        *("metrics.jsonl", ".old-best/a.txt", ".new-best/a.txt", ".lock", "data/train.parquet"),
    ],
)
def test_a_folder_that_holds_anything_is_refused_and_left_alone(file: str, tmp_path: Path) -> None:
    run = tmp_path / "run"
    (run / file).parent.mkdir(parents=True)
    (run / file).write_text("mine")
    before = snapshot(run)
    with pytest.raises(FolderError, match=f"{run} is not empty and holds no run .*; choose another out="):
        legato.train("lm", small(tmp_path), out=run, quiet=True)
    assert snapshot(run) == before


def test_a_run_that_lost_its_config_is_refused_and_left_alone(tmp_path: Path) -> None:
    run = legato.train("lm", small(tmp_path), out=tmp_path / "run", quiet=True).run
    (run / "config.yaml").unlink()
    before = snapshot(run)
    with pytest.raises(FolderError, match="is not empty and holds no run"):
        legato.train("lm", small(tmp_path), out=run, quiet=True)
    assert snapshot(run) == before


def test_notes_in_a_run_outlive_its_training(tmp_path: Path) -> None:
    run = legato.train("lm", small(tmp_path), out=tmp_path / "run", quiet=True).run
    notes = [run / name / "notes.txt" for name in (".", "best", "last", "checkpoints", "checkpoints/step-8")]
    for note in notes:
        note.write_text("mine")
    legato.train(resume=run, settings={"train.steps": 40}, quiet=True)
    assert [note.read_text() for note in notes] == ["mine"] * len(notes)
    assert not (run / "checkpoints" / "step-8" / "weights.safetensors").exists(), "it should have been pruned"


def test_a_start_that_fails_leaves_nothing_that_it_made(tmp_path: Path) -> None:
    with pytest.raises(LegatoError, match=r"no\.txt"):
        legato.train("lm", small(tmp_path, data__train="no.txt"), out=tmp_path / "some" / "run", quiet=True)
    assert not (tmp_path / "some" / "run").exists()


def test_a_start_that_fails_leaves_the_folder_that_was_there(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    with pytest.raises(LegatoError, match=r"no\.txt"):
        legato.train("lm", small(tmp_path, data__train="no.txt"), out=tmp_path / "run", quiet=True)
    assert names(tmp_path / "run") == []


def test_a_start_that_fails_late_leaves_what_came_meanwhile(tmp_path: Path) -> None:
    run = RunFolder.create(tmp_path / "run", SETTINGS)
    (run.path / "provenance.json").write_text("mine")
    run.write("provenance.json", "ours")
    run.withdraw()
    assert names(run.path) == ["provenance.json"]


def test_what_a_killed_start_left_is_no_obstacle(tmp_path: Path) -> None:
    for name in (LOCK, STARTING, ".new-config.yaml"):
        (tmp_path / name).touch()
    (tmp_path / ".new-config.yaml").write_text("task: l")
    (tmp_path / "data").mkdir()
    for name in ("train.parquet", ".new-valid.parquet-0123abcd"):
        (tmp_path / "data" / name).write_text("cut sh")
    run = RunFolder.create(tmp_path, SETTINGS)
    assert (run.settings, run.tables()) == (SETTINGS, {})
    run.withdraw()
    assert names(tmp_path) == []


def test_a_run_that_reached_its_first_checkpoint_is_never_taken_back(tmp_path: Path) -> None:
    run = RunFolder.create(tmp_path / "run", SETTINGS)
    run.started()
    run.withdraw()
    assert names(run.path) == ["config.yaml"]


def test_pruning_touches_no_folder_that_only_has_the_name_of_a_checkpoint(tmp_path: Path) -> None:
    for name in ("step-1", ".new-mine", ".old-mine"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "a.txt").write_text("mine")
    (tmp_path / "elsewhere").mkdir()
    save_checkpoint(Checkpoint(9, {}), tmp_path / "elsewhere", keep=1)
    (tmp_path / "step-2").symlink_to(tmp_path / "elsewhere" / "step-9")
    for step in (3, 4, 5):
        save_checkpoint(Checkpoint(step, {}), tmp_path, keep=1)
    sweep(tmp_path)
    kept = [".new-mine", ".old-mine", "elsewhere", "step-1", "step-2", "step-5"]
    assert names(tmp_path) == kept
    assert (tmp_path / "step-1" / "a.txt").read_text() == "mine"
    assert (tmp_path / "step-2" / "manifest.json").is_file()


OWN = ("best", "last", "checkpoints", "checkpoints/step-12", "metrics.jsonl", "config.yaml", "result.json")


@pytest.mark.parametrize("name", OWN)
def test_a_run_whose_own_files_lie_elsewhere_is_refused_and_those_are_left_alone(name: str, tmp_path: Path) -> None:
    run = legato.train("lm", small(tmp_path), out=tmp_path / "run", quiet=True).run
    mine = (run / name).rename(tmp_path / "mine")
    (run / name).symlink_to(mine)
    before = snapshot(tmp_path)
    with pytest.raises(FolderError, match=f"{run / name} is a link to {mine}, and nothing is written .*; put a copy"):
        legato.train(resume=run, settings={"train.steps": 40}, quiet=True)
    assert snapshot(tmp_path) == before


def test_checkpoints_are_not_pruned_through_a_link(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    save_checkpoint(Checkpoint(1, {}), tmp_path / "mine", keep=1)
    (tmp_path / "checkpoints").symlink_to("mine")
    with pytest.raises(FolderError, match="checkpoints is a link to mine"):
        save_checkpoint(Checkpoint(2, {}), tmp_path / "checkpoints", keep=1)
    assert names(tmp_path / "mine") == ["step-1"]


# ── what is resumed ───────────────────────────────────────────────────────────────────────────────


MINE = (".lock", ".new-best/a.txt", ".old-last/a.txt", ".new-config.yaml", "checkpoints/.new-step-1/a.txt")


def project(folder: Path, settings: str, *files: str) -> Path:
    """A folder of somebody's that has a config.yaml, as many have."""
    folder.mkdir()
    (folder / "last").mkdir()
    (folder / "config.yaml").write_text(settings)
    for file in files:
        (folder / file).parent.mkdir(parents=True, exist_ok=True)
        (folder / file).write_text("mine")
    return folder


def everything(folder: Path) -> tuple[list[Path], dict[str, bytes]]:
    return sorted(folder.rglob("*")), snapshot(folder)


def test_resuming_what_is_no_run_touches_nothing(tmp_path: Path) -> None:
    folder = project(tmp_path / "project", "a: 1\n", *MINE)
    (folder / "checkpoints" / "step-3").mkdir()
    before = everything(folder)
    with pytest.raises(LegatoError, match="unknown key 'a'"):
        legato.train(resume=folder, quiet=True)
    (folder / ".lock").write_text("")  # others' locks are empty, too
    with pytest.raises(LegatoError, match="unknown key 'a'"):
        legato.train(resume=folder, quiet=True)
    (folder / ".lock").write_text("mine")
    assert everything(folder) == before


def test_resuming_a_folder_that_only_holds_a_recipe_touches_nothing(tmp_path: Path) -> None:
    recipe = to_yaml(dump(check(settings_for("lm", small(tmp_path)))))
    folder = project(tmp_path / "project", recipe, *MINE[1:])
    (folder / "checkpoints" / "step-3").mkdir()
    before = everything(folder)
    with pytest.raises(LegatoError):
        legato.train(resume=folder, quiet=True)
    assert everything(folder) == before


def test_a_lock_that_somebody_wrote_into_is_neither_claimed_nor_removed(tmp_path: Path) -> None:
    run = legato.train("lm", small(tmp_path), out=tmp_path / "run", quiet=True).run
    (run / LOCK).write_text("mine")
    before = everything(run)
    with pytest.raises(FolderError, match=f"{run}/.lock is in the way: .*; move it away"):
        legato.train(resume=run, settings={"train.steps": 16}, quiet=True)
    assert everything(run) == before
    (run / LOCK).unlink()
    claimed = RunFolder.open(run)
    claimed.claim()
    (run / LOCK).write_text("mine")
    claimed.release()
    assert (run / LOCK).read_text() == "mine"


def test_what_kills_of_an_older_version_left_in_a_run_is_put_right(tmp_path: Path) -> None:
    run = legato.train("lm", small(tmp_path), out=tmp_path / "run", quiet=True).run
    (run / "best").rename(run / ".old-best")
    for name in (".new-best", ".new-last", "checkpoints/.new-step-16"):
        (run / name).mkdir()
        (run / name / "half.safetensors").write_text("half of")
    (run / ".new-metrics.jsonl").write_text("half of")
    assert find_model(run) == run / ".old-best"
    legato.train(resume=run, settings={"train.steps": 16}, quiet=True)
    assert list(run.rglob(".*")) == []
    assert (run / "best" / "model.safetensors").is_file()


# ── one process at a time ─────────────────────────────────────────────────────────────────────────


def test_a_run_that_another_process_has_is_refused(tmp_path: Path) -> None:
    first = RunFolder.create(tmp_path / "run", SETTINGS)
    with pytest.raises(FolderError, match="is being trained by another process"):
        RunFolder.open(first.path).claim()
    with pytest.raises(FolderError, match="already holds a run"):
        RunFolder.create(first.path, SETTINGS)
    assert names(first.path) == [LOCK, STARTING, "config.yaml"]
    first.release()
    RunFolder.open(first.path).claim()


def test_the_loser_of_a_race_takes_nothing_from_the_winner(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # The loser looks before the winner is there, and claims after.
    claim = RunFolder._claim
    winners: list[RunFolder] = []

    def late(self: RunFolder) -> None:
        monkeypatch.setattr(RunFolder, "_claim", claim)
        winners.append(RunFolder.create(self.path, SETTINGS))
        claim(self)

    monkeypatch.setattr(RunFolder, "_claim", late)
    with pytest.raises(FolderError, match="is being trained by another process"):
        RunFolder.create(tmp_path / "run", SETTINGS)
    assert names(winners[0].path) == [LOCK, STARTING, "config.yaml"]
    assert winners[0].settings == SETTINGS


def test_the_loser_who_comes_after_the_winner_has_ended_takes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    claim = RunFolder._claim

    def late(self: RunFolder) -> None:
        monkeypatch.setattr(RunFolder, "_claim", claim)
        RunFolder.create(self.path, SETTINGS).release()
        claim(self)

    monkeypatch.setattr(RunFolder, "_claim", late)
    with pytest.raises(FolderError, match="already holds a run"):
        RunFolder.create(tmp_path / "run", SETTINGS)
    assert names(tmp_path / "run") == [STARTING, "config.yaml"]


def test_a_folder_that_is_taken_back_while_it_is_claimed_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    claim = RunFolder._claim

    def late(self: RunFolder) -> None:
        monkeypatch.setattr(RunFolder, "_claim", claim)
        self.path.rmdir()
        claim(self)

    monkeypatch.setattr(RunFolder, "_claim", late)
    assert RunFolder.create(tmp_path / "run", SETTINGS).settings == SETTINGS


def test_runs_without_a_name_get_one_each_however_many_begin_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    together = threading.Barrier(8)
    made: list[RunFolder] = []

    def begin() -> None:
        together.wait()
        made.append(RunFolder.create_next(Path("runs/lm-lstm"), SETTINGS))

    threads = [threading.Thread(target=begin) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(run.path.name for run in made) == [f"lm-lstm-{number}" for number in range(1, 9)]


def test_a_lock_whose_file_was_removed_is_asked_for_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Another process opened the file before its owner removed it, and locks it after.
    path, real = tmp_path / "lock", locks._lock
    owner = hold(path)

    def late(handle: int) -> None:
        monkeypatch.setattr(locks, "_lock", real)
        path.unlink()
        let_go(owner)
        real(handle)

    monkeypatch.setattr(locks, "_lock", late)
    taken = hold(path)
    assert taken is not None
    assert os.path.samestat(os.fstat(taken), path.stat())
    with pytest.raises(Held):
        hold(path)


def test_a_lock_that_is_another_s_by_now_is_not_removed(tmp_path: Path) -> None:
    first = RunFolder.create(tmp_path / "run", SETTINGS)
    (first.path / LOCK).unlink()  # by hand
    second = RunFolder.open(first.path)
    second.claim()
    first.release()
    with pytest.raises(FolderError, match="is being trained by another process"):
        RunFolder.open(first.path).claim()
    second.release()


@pytest.mark.parametrize("target", ["nowhere/at/all", "file"])
def test_a_lock_that_is_a_link_is_not_followed(target: str, tmp_path: Path) -> None:
    run = RunFolder.create(tmp_path / "run", SETTINGS)
    run.release()
    (tmp_path / "file").write_text("mine")
    (run.path / LOCK).symlink_to(tmp_path / target)
    with pytest.raises(FolderError, match=r"\.lock is in the way"):
        RunFolder.open(run.path).claim()
    assert (tmp_path / "file").read_text() == "mine"


def test_a_failed_comparison_leaves_no_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    settings: dict[str, Any] = small(tmp_path, data__train=str(tmp_path / "no.txt"))
    with pytest.raises(LegatoError, match=r"no\.txt"):
        legato.compare("lm", {**settings, "model": ["elman", "lstm"]}, quiet=True)
    assert not (tmp_path / "runs" / "compare-1").exists()
