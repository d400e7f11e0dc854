"""Settings that tagging wants where nothing else was said, for each kind of model."""

from __future__ import annotations

from typing import Any

from legato.registry import MODELS

RECURRENT = ("elman", "gru", "lstm")


def tokenizer_habits(model: str) -> dict[str, Any]:
    config = MODELS.get(model).Config.model_fields
    if "masked_words" in config:
        return {"name": "wordpiece", "masked": True}
    return {"name": "bpe" if "heads" in config else "word"}


def model_habits(model: str, words: bool) -> dict[str, Any]:
    """Defaults of `model.*` where nothing else was said; they suit some 200,000 words of training text."""
    if model in RECURRENT:
        shape = {"bidirectional": True, "tied": False, "layers": 1, "width": 400, "embedding": 200}
        return {**shape, "dropout": 0.5, "characters": 100 if words else 0}
    if model == "window":
        return {"around": True, "context": 2, "width": 300, "embedding": 100, "dropout": 0.5}
    return {}


def train_habits(model: str, train: dict[str, Any]) -> dict[str, Any]:
    """Defaults of `train.*` for a model that begins with nothing."""
    if model in (*RECURRENT, "window"):
        return _completed({"lr": 2e-3, "epochs": 30, "schedule": "cosine", "clip": 5.0}, train)
    return _completed({"lr": 5e-4, "epochs": 20, "schedule": "linear", "weight_decay": 0.01, "beta2": 0.98}, train)


def tuning_habits(train: dict[str, Any], adapt: Any, over_features: bool) -> dict[str, Any]:
    """… and for one that is trained already: the less of it is tuned, the faster; a last layer alone the fastest."""
    how = str(adapt.get("name", "full") if isinstance(adapt, dict) else adapt or "full")
    rate = {"full": 1e-4, "head": 1e-3 if over_features else 5e-3}.get(how, 1e-3)
    return _completed({"lr": rate, "epochs": 5, "schedule": "linear", "weight_decay": 0.01, "beta2": 0.999}, train)


def _completed(defaults: dict[str, Any], train: dict[str, Any]) -> dict[str, Any]:
    if train.get("optimizer", "adamw") != "adamw":
        defaults = {}
    elif train.get("schedule", defaults["schedule"]) in ("linear", "cosine", "inverse-sqrt"):
        defaults["warmup"] = None  # as many as the run allows
    if "batch_tokens" not in train:
        defaults["batch_rows"] = 32
    return defaults
