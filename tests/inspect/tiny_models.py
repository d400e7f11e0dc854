"""Models to look into, trained for two steps."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import pytest

import legato
from legato.model import Model
from tiny_tasks import tiny

QUICK: dict[str, Any] = {"train.steps": 2, "train.samples": 0, "train.tensorboard": "false", "device": "cpu"}
LINES: dict[str, Any] = {"data.valid_share": 0.3, "data.window": 16, "train.batch_tokens": 64, "tokenizer": "word"}
PAIRS: dict[str, Any] = {"data.train": "toy:language", "data.toy.count": 50, "data.toy.valid_count": 5}
HEADS = {"model.heads": 2}


def train_models(folder: Path, text: str, runs: Mapping[str, Mapping[str, Any]]) -> dict[str, Model]:
    """A model for each of `runs`, settings with the task among them: on `text`, or on pairs to translate."""
    (folder / "text.txt").write_text(text, encoding="utf-8")
    lines = {**LINES, "data.train": str(folder / "text.txt")}
    models = {}
    for name, run in runs.items():
        own = {key: value for key, value in run.items() if key != "task"}
        data = PAIRS if run["task"] == "translation" else lines
        legato.train(run["task"], {**QUICK, "model.width": 16, **data, **own}, out=folder / name, quiet=True)
        models[name] = legato.load(folder / name, "cpu")
    return models


Changed = Callable[[str, Path, dict[str, Any]], dict[str, Any]]  # settings of a run, given its name and its folder


def made_once(
    factory: pytest.TempPathFactory, runs: Mapping[str, tuple[str, Mapping[str, Any]]], changed: Changed
) -> Callable[[str], Model]:
    """The models of `runs`, a task and what differs from its example each, trained for a step when asked for."""

    @cache
    def made(name: str) -> Model:
        task, changes = runs[name]
        folder = factory.mktemp(name)
        given = changed(name, folder, tiny(task, folder / "data", train__steps=1, **changes))
        legato.train(task, given, out=folder / "run", quiet=True)
        return legato.load(folder / "run", "cpu")

    return made
