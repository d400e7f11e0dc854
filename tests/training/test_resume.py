"""The promise: kill it at any moment, and it resumes to the same bits.

Every run here is a process of its own. Some are killed from outside by `kill -9`; others end themselves,
without cleaning up, at a chosen call of a chosen function: inside the writing of a checkpoint, between
two renames, before the last word.
"""

from __future__ import annotations

import json
import os
import random
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from thinned import some
from tiny_runs import finish, read_metrics, small, start, wait_for, weights_digest, words

STEPS = 20

# Each is one way for a run to carry something from step to step.
QUICK = ("adamw with dropout", "gpt2")  # those that are killed in every run of the tests
KINDS: dict[str, dict[str, Any]] = {
    "adamw with dropout": {"model__dropout": 0.2, "model__dropout_recurrent": 0.2, "train__warmup": 5},
    "asgd": {
        "train__optimizer": "asgd",
        "train__lr": 300,
        "train__average_patience": 1,
        "train__schedule": "constant",
        "data__forget": 0.02,
    },
    "ema": {"train__ema": 0.9, "train__schedule": "plateau", "train__lr": 0.05},
    "accumulation": {
        "train__accumulate": 2,
        "model__dropout": 0.2,
        "train__optimizer": "sgd",
        "train__momentum": 0.9,
    },
    "toy rows": {
        "data__train": "toy:copy",
        "data__valid": None,
        "data__toy__count": 200,
        "data__toy__valid_count": 20,
        "tokenizer": "word",
        "model__dropout": 0.2,
    },
    "gpt2": {
        "model": "gpt2",
        "model__heads": 2,
        "model__dropout": 0.2,
        "train__recompute": "true",
        "train__optimizer": "muon",
    },
    "window": {"model": "window", "data__batching": "windows", "model__dropout": 0.2},
}
PLAIN = "adamw with dropout"


def settings_of(kind: str, folder: Path) -> list[str]:
    common = {"train__steps": STEPS, "train__validate_every": 4, "train__checkpoint_every": 6}
    chosen = small(folder, **common, **KINDS[kind])
    return words({key: value for key, value in chosen.items() if value is not None})


@pytest.fixture(scope="session")
def whole_runs(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """A run of each kind that nothing interrupted, made when first asked for."""
    made: dict[str, Path] = {}

    def get(kind: str) -> Path:
        if kind not in made:
            folder = tmp_path_factory.mktemp("whole")
            process = start(["train", "lm", *settings_of(kind, folder), f"out={folder}/run"], folder / "log")
            assert finish(process) == 0, (folder / "log").read_text()
            made[kind] = folder / "run"
        return made[kind]

    return get


class Interrupted:
    """A run that is started, ended and taken up again."""

    def __init__(self, kind: str, folder: Path) -> None:
        self.kind, self.folder, self.run = kind, folder, folder / "run"

    def go(self, crash: tuple[str, int] | None = None) -> int:
        """Start or go on; with `crash`, the process ends itself there."""
        return finish(self._start(crash))

    def go_until(self, condition: Callable[[], Any]) -> int:
        """Start or go on, and `kill -9` once `condition` holds."""
        process = self._start(None, slowly)
        wait_for(condition, process)
        process.kill()
        return finish(process)

    def last_step(self) -> int:
        return max((line["step"] for line in read_metrics(self.run)), default=0)

    def _start(self, crash: tuple[str, int] | None, prepare: Callable[..., None] | None = None) -> Any:
        if (self.run / "config.yaml").exists():
            arguments = ["train", f"resume={self.run}"]
        else:
            arguments = ["train", "lm", *settings_of(self.kind, self.folder), f"out={self.run}"]
        return start(arguments, self.folder / "log", end_at if crash else prepare, *(crash or ()))

    def assert_same_as(self, whole: Path) -> None:
        assert weights_digest(self.run) == weights_digest(whole), (self.folder / "log").read_text()
        assert course(self.run) == course(whole)


def course(run: Path) -> list[tuple[Any, ...]]:
    """What metrics.jsonl says of each step, without the speed."""
    return [(line["step"], line["kind"], line.get("loss"), line.get("accuracy")) for line in read_metrics(run)]


def slowly() -> None:
    """Wait a little at each step, so that a kill meant for one step does not come after the last."""
    from legato.training.loop import Trainer

    update = Trainer._update

    def waiting(self: Trainer) -> None:
        update(self)
        time.sleep(0.01)

    Trainer._update = waiting  # type: ignore[method-assign]


def end_at(place: str, count: int) -> None:
    """Make the `count`-th call of a function end this process as `kill -9` does; half a file is left by a save."""
    import pathlib
    import shutil

    from legato.folders import atomic, shards
    from legato.runs import train as run
    from legato.training import checkpoints

    homes: dict[str, list[tuple[Any, str]]] = {
        "a checkpoint's file": [(checkpoints, "save_tensors")],
        "a model's file": [(shards, "save_tensors")],
        "a checkpoint's manifest": [(checkpoints, "_digest")],
        "a rename": [(pathlib.Path, "rename")],
        "an exchange": [(atomic, "exchange")],
        "a removal": [(shutil, "rmtree")],
        "a file's replacement": [(os, "replace")],
        "a sync": [(atomic, "_sync")],
        "the last word": [(run, "_conclude")],
    }
    if place == "one of two renames":  # where the system cannot exchange folders
        atomic.exchange = lambda *_: False  # type: ignore[assignment]
        place = "a rename"
    calls = 0

    def counted(original: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **options: Any) -> Any:
            nonlocal calls
            calls += 1
            if calls < count:
                return original(*args, **options)
            if original.__name__ == "save_tensors":
                original(*args, **options)
                size = args[1].stat().st_size
                os.truncate(args[1], size // 2)
            elif original.__name__ == "rmtree" and os.path.isdir(args[0]):
                for name in sorted(os.listdir(args[0]))[:1]:
                    os.unlink(os.path.join(args[0], name))
            os._exit(9)

        return call

    for home, name in homes[place]:
        setattr(home, name, counted(getattr(home, name)))


@pytest.mark.parametrize("kind", some([*KINDS], QUICK))
def test_a_run_killed_three_times_ends_with_the_same_bits(kind: str, tmp_path: Path, whole_runs: Any) -> None:
    whole = whole_runs(kind)
    interrupted = Interrupted(kind, tmp_path)
    for step in (3, 9, 15):
        assert interrupted.go_until(lambda step=step: interrupted.last_step() >= step) == -9
    assert interrupted.go() == 0
    interrupted.assert_same_as(whole)


@pytest.mark.parametrize("seed", some([1, 2], [1]))
def test_a_run_killed_after_random_times_ends_with_the_same_bits(seed: int, tmp_path: Path, whole_runs: Any) -> None:
    whole = whole_runs(PLAIN)
    interrupted = Interrupted(PLAIN, tmp_path)
    draw = random.Random(seed)
    for _ in range(4):
        process = interrupted._start(None)
        process.join(draw.uniform(0.02, 0.5))
        process.kill()
        finish(process)
        if (interrupted.run / "result.json").exists():
            break
    else:
        assert interrupted.go() == 0
    interrupted.assert_same_as(whole)


@pytest.mark.parametrize(
    ("place", "count"),
    [
        ("a checkpoint's file", 1),  # before there is any checkpoint
        pytest.param("a checkpoint's file", 5, marks=pytest.mark.slow),
        pytest.param("a checkpoint's file", 8, marks=pytest.mark.slow),
        pytest.param("a checkpoint's file", 20, marks=pytest.mark.slow),
        pytest.param("a checkpoint's manifest", 9, marks=pytest.mark.slow),
        pytest.param("a model's file", 1, marks=pytest.mark.slow),
        pytest.param("a model's file", 2, marks=pytest.mark.slow),
        pytest.param("a rename", 1, marks=pytest.mark.slow),  # of the first checkpoint
        pytest.param("a rename", 3, marks=pytest.mark.slow),  # of the second checkpoint, after best
        ("an exchange", 1),  # of best
        pytest.param("an exchange", 3, marks=pytest.mark.slow),
        ("one of two renames", 4),  # best has stepped aside, its successor has not come
        pytest.param("one of two renames", 5, marks=pytest.mark.slow),
        pytest.param("one of two renames", 11, marks=pytest.mark.slow),
        pytest.param("a removal", 1, marks=pytest.mark.slow),
        pytest.param("a removal", 2, marks=pytest.mark.slow),
        pytest.param("a removal", 3, marks=pytest.mark.slow),
        ("a file's replacement", 1),
        pytest.param("a file's replacement", 2, marks=pytest.mark.slow),
        pytest.param("a file's replacement", 3, marks=pytest.mark.slow),
        pytest.param("a file's replacement", 4, marks=pytest.mark.slow),  # result.json itself
        pytest.param("a sync", 2, marks=pytest.mark.slow),
        pytest.param("a sync", 6, marks=pytest.mark.slow),
        ("the last word", 1),
    ],
)
def test_a_run_that_ends_inside_a_write_resumes_to_the_same_bits(
    place: str, count: int, tmp_path: Path, whole_runs: Any
) -> None:
    whole = whole_runs(PLAIN)
    interrupted = Interrupted(PLAIN, tmp_path)
    assert interrupted.go((place, count)) == 9, "it should have ended there"
    assert interrupted.go() == 0
    interrupted.assert_same_as(whole)


@pytest.mark.parametrize(
    ("place", "count"),
    [
        ("an exchange", 1),
        pytest.param("one of two renames", 1, marks=pytest.mark.slow),
        pytest.param("one of two renames", 2, marks=pytest.mark.slow),
    ],
)
def test_the_first_checkpoint_survives_a_kill_while_it_is_written_again(
    place: str, count: int, tmp_path: Path, whole_runs: Any
) -> None:
    whole = whole_runs(PLAIN)
    interrupted = Interrupted(PLAIN, tmp_path)
    assert interrupted.go(("a model's file", 1)) == 9  # at step 4; the only checkpoint is of step 0
    assert interrupted.go((place, count)) == 9
    assert interrupted.go() == 0
    interrupted.assert_same_as(whole)


def test_a_run_killed_before_its_first_checkpoint_says_that_it_begins_again(tmp_path: Path) -> None:
    interrupted = Interrupted(PLAIN, tmp_path)
    assert interrupted.go(("a checkpoint's file", 1)) == 9
    assert interrupted.go() == 0
    assert "stopped before its first checkpoint; beginning again" in (tmp_path / "log").read_text()


def test_a_run_killed_before_its_last_word_still_gets_its_scores(tmp_path: Path, whole_runs: Any) -> None:
    interrupted = Interrupted(PLAIN, tmp_path)
    interrupted.go(("the last word", 1))
    assert interrupted.go() == 0
    mine, theirs = (json.loads((run / "result.json").read_text()) for run in (interrupted.run, whole_runs(PLAIN)))
    assert mine["metrics"]["valid.loss"] == theirs["metrics"]["valid.loss"]


def test_the_asgd_run_did_start_averaging(whole_runs: Any) -> None:
    newest = whole_runs("asgd") / "checkpoints" / f"step-{STEPS}"
    assert json.loads((newest / "progress.json").read_text())["average_updates"] > 1


def test_a_lengthened_run_that_is_killed_goes_on_to_its_new_length(tmp_path: Path) -> None:
    interrupted = Interrupted(PLAIN, tmp_path)
    assert interrupted.go() == 0
    lengthened = start(
        ["train", f"resume={interrupted.run}", "train.steps=40"], tmp_path / "log", end_at, "a model's file", 2
    )
    assert finish(lengthened) == 9
    assert interrupted.go() == 0
    assert interrupted.last_step() == 40
