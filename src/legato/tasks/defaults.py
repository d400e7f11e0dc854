"""What the tasks with texts as rows want where nothing else was said: classification, tagging, qa and embedding.

A trained model is tuned in few epochs with small steps, larger ones where little of it moves (`adapt=`); one from
scratch wants more of both. Where tasks differ, each says so in numbers of its own; the rest is the same for all.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from legato.registry import MODELS
from legato.training.adapt import adapt_name

LENGTH: Final = 256  # positions of a model from scratch, unless something else is said
ROWS: Final = 32  # of a step
WARMED: Final = ("linear", "cosine", "inverse-sqrt")  # schedules that begin with a slow rise


def scratch_model(name: str, length: int | None = None, pooler: bool = False) -> dict[str, Any]:
    """Defaults of `model.*` from scratch: it reads both ways, has `length` positions, and guesses no words."""
    config = MODELS.get(name).Config
    if config.both_ways:
        return dict(config.both_ways)
    usual: dict[str, Any] = {"length": length or LENGTH} if config.has_length() else {}
    return usual | {head: pooler if head == "pooler" else False for head in config.pretraining_heads}


def tagger_model(name: str, words: bool) -> dict[str, Any]:
    """The same for tagging; recurrent models and the window suit some 200,000 `words` of training text."""
    usual, network = scratch_model(name), MODELS.get(name).Config.network
    if network == "recurrent":
        usual |= {"tied": False, "layers": 1, "width": 400, "embedding": 200, "dropout": 0.5}
        return {**usual, "characters": 100 if words else 0}
    if network == "window":
        usual |= {"context": 2, "width": 300, "embedding": 100, "dropout": 0.5}
    return usual


def scratch_tokenizer(model: Mapping[str, Any], words: bool = False) -> dict[str, Any]:
    """Defaults of `tokenizer.*` from scratch; letters are of whole words, and so are vectors (`words`)."""
    config = MODELS.get(str(model["name"])).Config
    if words or config.network == "characters" or str(model.get("characters", 0)) != "0":
        return {"name": "word", "min_count": 2}
    if config.uses_cls:
        return {"name": "wordpiece", "masked": True}
    return {"name": "bpe" if config.network == "attention" else "wordpiece"}


def tagger_tokenizer(name: str) -> dict[str, Any]:
    """The same for tagging: what does not attend reads whole words, be they as rare as they may."""
    attends = MODELS.get(name).Config.network == "attention"
    return scratch_tokenizer({"name": name}) if attends else {"name": "word"}


def scratch_training(
    name: str,
    train: Mapping[str, Any],
    *,
    recurrent: float = 1e-3,
    attention: float = 3e-4,
    rows: int = ROWS,
    epochs: int | None = None,
    **more: Any,
) -> dict[str, Any]:
    """Defaults of `train.*` from scratch: the rates of recurrent and window models, and of Transformers."""
    rate = recurrent if MODELS.get(name).Config.network in ("recurrent", "window") else attention
    usual = {"lr": rate, "weight_decay": 0.01, "schedule": "linear", **more}
    return _completed(train, usual, rows, epochs)


def tuning(
    train: Mapping[str, Any],
    adapt: Any,
    *,
    full: float = 5e-5,
    part: float = 1e-3,
    rows: int = ROWS,
    epochs: int = 3,
) -> dict[str, Any]:
    """Defaults of `train.*` for a trained model: the rate where all of it is tuned, and where a `part` is."""
    rate = full if adapt_name(adapt) == "full" else part
    usual = {"lr": rate, "weight_decay": 0.01, "beta2": 0.999, "schedule": "linear"}
    return _completed(train, usual, rows, epochs)


def tagger_training(name: str, train: Mapping[str, Any]) -> dict[str, Any]:
    """… from scratch for tagging."""
    if MODELS.get(name).Config.network in ("recurrent", "window"):
        usual = {"lr": 2e-3, "schedule": "cosine", "clip": 5.0}
        return _completed(train, usual, ROWS, 30)
    return scratch_training(name, train, attention=5e-4, epochs=20, beta2=0.98)


def _completed(train: Mapping[str, Any], usual: dict[str, Any], rows: int, epochs: int | None) -> dict[str, Any]:
    """Without what contradicts `train`: another optimiser has rates of its own, and steps win over epochs."""
    found: dict[str, Any] = {} if "batch_tokens" in train else {"batch_rows": rows}
    if epochs is not None and train.get("steps") is None:
        found["epochs"] = epochs
    if train.get("optimizer", "adamw") != "adamw":
        return found
    if train.get("schedule", usual["schedule"]) in WARMED:
        found["warmup"] = None  # as many as the run allows
    return {**found, **usual}
