"""Models to look into, trained for two steps."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import legato
from legato.model import Model

QUICK: dict[str, Any] = {"train.steps": 2, "train.tensorboard": "false", "device": "cpu"}
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
