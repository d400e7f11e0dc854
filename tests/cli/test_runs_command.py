"""`legato runs`, and `legato compare` of finished ones: what there is, what is best, and what may be removed."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

import legato
from legato.folders import locks
from legato.runs.run_folder import RunFolder
from tiny_runs import small


@pytest.fixture
def runs(home: Path, other: Path, tmp_path: Path) -> Path:
    """A folder with two runs that differ in their rate."""
    shutil.copytree(home / "run", tmp_path / "runs" / "a")
    shutil.copytree(other, tmp_path / "runs" / "deeper" / "b")
    return tmp_path / "runs"


@pytest.fixture(scope="module")
def other(home: Path) -> Path:
    return legato.train("lm", small(home, train__steps=2, train__lr=0.0001), out=home / "other", quiet=True).run


def listed(command: Any, runs: Path, *words: str) -> list[dict[str, Any]]:
    answer = command("runs", "list", runs, "--json", *words)
    assert answer.code == 0, answer.err
    read: list[dict[str, Any]] = json.loads(answer.out)
    return read


def test_runs_are_listed_with_their_state_score_and_size(command: Any, runs: Path) -> None:
    first, second = listed(command, runs, "--sort", "name")
    assert (first["path"], second["path"]) == (str(runs / "a"), str(runs / "deeper" / "b"))
    assert (first["task"], first["model"], first["state"], first["steps"]) == ("lm", "lstm", "finished", 30)
    assert first["metric"] == "valid.bits_per_byte"
    assert first["score"] < second["score"]
    assert first["size"] == sum(path.stat().st_size for path in (runs / "a").rglob("*") if path.is_file())
    assert "valid bits per byte" in command("runs", runs).out
    assert [run["steps"] for run in listed(command, runs, "--sort", "score")] == [30, 2]


def test_a_run_is_running_while_it_is_claimed_and_stopped_without_a_result(command: Any, runs: Path) -> None:
    run = RunFolder.open(runs / "a")
    run.claim()
    (runs / "deeper" / "b" / "result.json").unlink()
    assert [one["state"] for one in listed(command, runs, "--sort", "name")] == ["running", "stopped"]
    assert command("runs", "prune", runs / "a").err.endswith(
        "is being trained by another process; wait for it or stop it\n"
    )
    assert command("runs", "delete", runs / "a", "--yes").code == 2
    run.release()
    assert listed(command, runs / "a")[0]["state"] == "finished"


def test_a_damaged_run_does_not_hide_the_others(command: Any, runs: Path) -> None:
    (runs / "a" / "config.yaml").write_bytes(b"\xff{")
    assert [one["state"] for one in listed(command, runs, "--sort", "name")] == ["unreadable", "finished"]


def test_a_run_is_shown_with_the_settings_that_differ_from_the_defaults(command: Any, runs: Path) -> None:
    shown = json.loads(command("runs", "show", runs / "a", "--json").out)
    assert shown["settings"]["train.lr"]["value"] == "0.02"
    assert shown["settings"]["tokenizer.name"] == {"value": "char", "default": "bpe"}
    assert "train.clip" not in shown["settings"]
    assert "step-30" in shown["facts"]["checkpoints"]
    assert "valid perplexity" in command("runs", "show", runs / "a").out


def test_the_best_run_is_the_one_whose_score_is_better(command: Any, runs: Path) -> None:
    (best,) = json.loads(command("runs", "best", runs, "--task", "lm", "--json").out)
    assert (best["path"], best["among"]) == (str(runs / "a"), 2)
    assert "no run of qa" in command("runs", "best", runs, "--task", "qa").out


def test_checkpoints_go_and_the_models_stay(command: Any, runs: Path) -> None:
    size = listed(command, runs / "a")[0]["size"]
    report = json.loads(command("runs", "prune", runs / "a", "--keep", "last", "--json").out)
    assert [path.name for path in (runs / "a" / "checkpoints").iterdir()] == ["step-30"]
    report["bytes"] += json.loads(command("runs", "prune", runs / "a", "--keep", "none", "--json").out)["bytes"]
    assert size - listed(command, runs / "a")[0]["size"] == report["bytes"] > 0
    assert isinstance(legato.load(runs / "a").generate("the", max_tokens=2), str)
    assert (runs / "a" / "last" / "config.json").is_file()
    assert command("runs", "prune", runs / "a", "--keep", "all").code == 2


def test_a_run_is_deleted_when_somebody_says_so_and_what_is_not_its_own_stays(command: Any, runs: Path) -> None:
    answer = command("runs", "delete", runs / "a")
    assert (answer.code, answer.err.count("\n")) == (2, 1)
    assert "add --yes" in answer.err
    (runs / "deeper" / "b" / "notes.txt").write_text("mine")
    answer = command("runs", "delete", runs / "a", runs / "deeper" / "b", "--yes")
    assert answer.code == 0, answer.err
    assert [path.name for path in runs.rglob("*")] == ["deeper", "b", "notes.txt"]
    assert "files that are not the run's stay there" in answer.out


def test_nothing_is_removed_where_training_wrote_nothing(command: Any, tmp_path: Path) -> None:
    (tmp_path / "project" / "data").mkdir(parents=True)
    (tmp_path / "project" / "config.yaml").write_text("lr: 3\n")
    (tmp_path / "project" / "data" / "raw.csv").write_text("mine")
    answer = command("runs", "delete", tmp_path / "project", "--yes")
    assert (answer.code, answer.err.count("\n")) == (2, 1)
    assert "nothing that training wrote" in answer.err
    assert (tmp_path / "project" / "data" / "raw.csv").is_file()


def test_an_unfinished_run_is_not_removed_where_no_lock_tells_what_trains(
    command: Any, runs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(locks, "LOCKS", False)
    (runs / "a" / "result.json").unlink()
    answer = command("runs", "delete", runs / "a", runs / "deeper" / "b", "--yes")
    assert (answer.code, answer.err.count("\n")) == (2, 1)
    assert "not finished, and may be in training" in answer.err
    assert command("runs", "delete", runs / "deeper" / "b", "--yes").code == 0


def test_a_damaged_checkpoint_is_not_the_last_to_keep(command: Any, runs: Path) -> None:
    places = sorted((runs / "a" / "checkpoints").iterdir(), key=lambda place: int(place.name.partition("-")[2]))
    (places[-1] / "weights.safetensors").write_bytes(b"cut short")
    assert command("runs", "prune", runs / "a", "--keep", "last").code == 0
    assert places[-2].is_dir()
    assert not places[-1].exists()


def test_finished_runs_are_compared_without_training(command: Any, runs: Path) -> None:
    answer = command("compare", runs / "a", runs / "deeper" / "b", "--json")
    report = json.loads(answer.out)
    assert report["settings"] == {"train.lr": ["0.02", "0.0001"], "train.steps": ["30", "2"]}
    assert [one["steps"] for one in report["runs"]] == [30, 2]
    assert "train.lr" in command("compare", runs / "a", runs / "deeper" / "b").out


def test_runs_that_do_not_go_together_are_refused(command: Any, runs: Path) -> None:
    a, b = runs / "a", runs / "deeper" / "b"
    assert "leave out seed=1" in command("compare", a, b, "seed=1").err
    (b / "result.json").unlink()
    assert f"train resume={b}" in command("compare", a, b).err
    config = b / "config.yaml"
    config.write_text(config.read_text().replace("task: lm", "task: mlm"))
    assert "compare runs of one task" in command("compare", a, b).err
    assert "is no run" in command("runs", "show", runs / "c").err
    assert "did you mean 'show'?" in command("runs", "shwo").err
