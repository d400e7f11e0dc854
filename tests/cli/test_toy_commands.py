"""Toys: rows that are made rather than read, trained and evaluated by the commands."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import legato
from tiny_runs import small, words

TOY = {"data__valid": None, "tokenizer": None, "data__toy__count": 300, "data__toy__valid_count": 20}


@pytest.mark.parametrize("toy", ["copy", "reverse", "sort", "brackets", "recall"])
def test_every_toy_trains_and_reports_accuracy(toy: str, command: Any, tmp_path: Path) -> None:
    settings = {k: v for k, v in small(tmp_path, data__train=f"toy:{toy}", **TOY).items() if v is not None}
    answer = command("train", "lm", *words(settings), f"out={tmp_path}/run", "train.samples=1", "--json")
    assert 0 <= json.loads(answer.out)["valid.accuracy"] <= 1
    assert "(right: " in answer.err


@pytest.mark.slow
def test_recall_is_learned_and_evaluated_at_another_distance(command: Any, tmp_path: Path) -> None:
    learn = {
        "train__steps": 500,
        "train__batch_tokens": 512,
        "train__lr": 0.02,
        "model__width": 32,
        "model__dropout": 0,
    }
    changes = {**learn, "train__validate_every": 500, "train__log_every": 100}
    toy = {**TOY, "data__toy__symbols": 3, "data__toy__distance": "[1,6]", "data__toy__count": 1000}
    settings = {k: v for k, v in small(tmp_path, data__train="toy:recall", **toy, **changes).items() if v is not None}
    assert command("train", "lm", *words(settings), f"out={tmp_path}/run").code == 0
    asked = ["data.test=toy:recall", "data.toy.distance=5", "data.toy.symbols=3", "data.toy.valid_count=50"]
    scores = json.loads(command("eval", tmp_path / "run", *asked, "--json").out)
    assert scores["accuracy"] > 0.6  # a guess is right one time in three


def test_a_toy_is_tested_as_it_was_trained(tmp_path: Path) -> None:
    settings = {"data.train": "toy:recall", "data.toy.distance": 3, "data.toy.count": 200, "train.steps": 2}
    legato.train("lm", {**settings, "model.width": 8}, out=tmp_path / "run", seed=5, quiet=True)
    about = legato.load(tmp_path / "run").about["toy"]
    assert about["seed"] == 5
    assert about["settings"]["distance"] == [3, 3]
