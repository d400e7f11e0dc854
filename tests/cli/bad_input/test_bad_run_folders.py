"""Run folders that are taken, finished, changed or damaged: one line, and they stay as they were."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import legato
from legato.training.checkpoint_files import list_checkpoints
from refusals import ends_in_one_line, is_one_line
from tiny_runs import small, snapshot, weights_digest, words, write_text

# ── the run folder ────────────────────────────────────────────────────────────────────────────────


def test_an_out_that_holds_a_run_is_refused_and_left_alone(command: Any, home: Path, finished: Path) -> None:
    before = snapshot(finished)
    is_one_line(command("train", "lm", *words(small(home)), f"out={finished}"), f"{finished} already holds a run")
    assert snapshot(finished) == before


def test_an_out_that_is_a_file_is_refused_and_left_alone(command: Any, home: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    is_one_line(command("train", "lm", *words(small(home)), f"out={tmp_path}/file"), f"{tmp_path}/file is a file")
    assert (tmp_path / "file").read_text() == "mine"


def test_an_out_below_a_file_is_refused(command: Any, home: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    is_one_line(command("train", "lm", *words(small(home)), f"out={tmp_path}/file/run"), f"{tmp_path}/file/run")


def test_an_out_that_holds_something_else_is_refused_and_left_alone(command: Any, home: Path, tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "notes.txt").write_text("mine")
    answer = command("train", "lm", *words(small(home)), f"out={tmp_path}/run")
    is_one_line(answer, f"{tmp_path}/run is not empty and holds no run (it has notes.txt)")
    assert snapshot(tmp_path / "run") == {"notes.txt": b"mine"}


@pytest.mark.parametrize("word", ["model.width=32", "model=gru", "model.dropout=0.5", "tokenizer=byte", "seed=5"])
def test_resuming_with_other_settings_is_refused(word: str, command: Any, stopped: Path) -> None:
    before = snapshot(stopped)
    key = {"model=gru": "model.name", "tokenizer=byte": "tokenizer.name"}.get(word, word.partition("=")[0])
    is_one_line(command("train", f"resume={stopped}", word), f"{key} is ", f"in {stopped} and cannot become")
    assert snapshot(stopped) == before


def test_resuming_with_an_unknown_key_suggests_the_nearest(command: Any, stopped: Path) -> None:
    is_one_line(command("train", f"resume={stopped}", "train.stpes=50"), "'train.stpes'", "'steps'")


def test_resuming_with_other_data_under_the_same_name_is_refused(command: Any, tmp_path: Path) -> None:
    run = legato.train("lm", small(tmp_path), out=tmp_path / "run", quiet=True).run
    write_text(tmp_path / "train.txt", seed=99)
    before = snapshot(run)
    answer = command("train", f"resume={run}", "train.steps=16")
    ends_in_one_line(answer, f"data.train is not the text that {run} began with")
    assert snapshot(run) == before


def test_resuming_a_finished_run_is_refused_and_leaves_it_alone(command: Any, finished: Path) -> None:
    before = snapshot(finished)
    is_one_line(command("train", f"resume={finished}"), f"{finished} is finished", "raise train.steps")
    assert snapshot(finished) == before


def test_resuming_a_finished_run_with_fewer_steps_is_refused(command: Any, finished: Path) -> None:
    before = snapshot(finished)
    ends_in_one_line(command("train", f"resume={finished}", "train.steps=8"), f"{finished} is finished")
    assert snapshot(finished) == before


def test_resuming_without_a_checkpoint_is_refused(command: Any, stopped: Path) -> None:
    shutil.rmtree(stopped / "checkpoints")
    before = snapshot(stopped)
    is_one_line(command("train", f"resume={stopped}"), f"{stopped} has no checkpoint")
    assert snapshot(stopped) == before


@pytest.mark.parametrize("made", [True, False])
def test_resuming_what_is_no_run_is_refused(made: bool, command: Any, tmp_path: Path) -> None:
    if made:
        (tmp_path / "none").mkdir()
    is_one_line(command("train", f"resume={tmp_path}/none"), f"{tmp_path}/none holds no run")


def test_resuming_a_recipe_is_refused(command: Any, stopped: Path) -> None:
    is_one_line(command("train", "lm", f"resume={stopped}"), "leave out 'lm'")


# ── damage ────────────────────────────────────────────────────────────────────────────────────────


def truncate(place: Path) -> None:
    file = place / "weights.safetensors"
    file.write_bytes(file.read_bytes()[:100])


def flip_a_bit(place: Path) -> None:
    data = bytearray((place / "optimizer.safetensors").read_bytes())
    data[len(data) // 2] ^= 4
    (place / "optimizer.safetensors").write_bytes(data)


def lose_the_manifest(place: Path) -> None:
    (place / "manifest.json").unlink()


DAMAGES = [truncate, flip_a_bit, lose_the_manifest]


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_checkpoint_is_named_and_the_one_before_it_used(
    damage: Callable[[Path], None], command: Any, stopped: Path, home: Path
) -> None:
    damage(stopped / "checkpoints" / "step-10")
    answer = command("train", f"resume={stopped}")
    assert answer.code == 0
    warnings = [line for line in answer.err.splitlines() if line.startswith("warning: ")]
    assert len(warnings) == 1
    assert f"{stopped}/checkpoints/step-10" in warnings[0]
    assert warnings[0].endswith("using the one before")
    assert "going on from step 8 of 12" in answer.err
    assert weights_digest(stopped) == weights_digest(home / "finished")


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_run_whose_every_checkpoint_is_damaged_is_refused(
    damage: Callable[[Path], None], command: Any, stopped: Path
) -> None:
    for place in list_checkpoints(stopped / "checkpoints"):
        damage(place)
    before = snapshot(stopped)
    ends_in_one_line(command("train", f"resume={stopped}"), f"every checkpoint in {stopped}/checkpoints is damaged")
    assert snapshot(stopped) == before
