"""The model folder: a Hugging Face folder with what is ours under one key.

config.json            the architecture; `model_type` is legato-lstm and so on for what they lack
model.safetensors      the weights
tokenizer.json, tokenizer_config.json
generation_config.json
README.md              the model card
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from legato.config import validate
from legato.data.tokenizers import Tokenizer
from legato.errors import ConfigError, DataError, FolderError
from legato.folders.atomic import OLD
from legato.folders.weights import load_tensors, put_weights, save_tensors, weights_of
from legato.models.base import SequenceModel
from legato.registry import MODELS

PREFIX = "legato-"


@dataclass
class Loaded:
    """What a model folder holds."""

    folder: Path
    module: SequenceModel
    tokenizer: Tokenizer
    task: str
    about: dict[str, Any] = field(default_factory=dict)  # the "legato" key


def save_model(
    folder: Path, module: SequenceModel, tokenizer: Tokenizer, *, task: str, about: dict[str, Any], card: str
) -> None:
    """Write every file of a model folder into `folder`, which exists."""
    settings = module.config.model_dump(mode="json")
    name = settings.pop("name")
    config = {
        "model_type": PREFIX + name,
        "architectures": [type(module).__name__],
        "vocab_size": module.vocabulary,
        **settings,
        "legato": {"task": task, **about},
    }
    _write_json(folder / "config.json", config)
    save_tensors(weights_of(module), folder / "model.safetensors")
    tokenizer.save(folder)
    generation: dict[str, Any] = {"bos_token_id": tokenizer.eos_id}
    if tokenizer.ends_text:
        generation["eos_token_id"] = tokenizer.eos_id
    _write_json(folder / "generation_config.json", generation)
    (folder / "README.md").write_text(card, encoding="utf-8")


def load_model(folder: Path) -> Loaded:
    """Read a model folder; nothing is returned unless all of it fits."""
    config = _read_json(folder / "config.json")
    kind = config.get("model_type")
    if not isinstance(kind, str):
        raise FolderError(f"{folder / 'config.json'} names no model_type")
    name = kind.removeprefix(PREFIX)
    if not kind.startswith(PREFIX) or name not in MODELS:
        known = ", ".join(PREFIX + n for n in MODELS.names())
        raise FolderError(f"{folder} holds a '{kind}', which Legato does not have; it has {known}")
    about = config.pop("legato", {})
    if not isinstance(about, dict):
        raise FolderError(f"{folder / 'config.json'}: 'legato' should hold a JSON object")
    vocabulary = config.pop("vocab_size", None)
    settings = {k: v for k, v in config.items() if k not in ("model_type", "architectures")}
    model: type[SequenceModel] = MODELS.get(name)
    try:
        checked = validate(model.Config, {"name": name, **settings})
    except ConfigError as problem:
        raise FolderError(f"{folder / 'config.json'}: {problem}") from None
    if not isinstance(vocabulary, int) or vocabulary < 1:
        raise FolderError(f"{folder / 'config.json'}: vocab_size is {vocabulary}")
    try:
        tokenizer = Tokenizer.load(folder / "tokenizer.json")
    except DataError as problem:
        raise FolderError(str(problem)) from None
    if tokenizer.size > vocabulary:
        raise FolderError(f"{folder}: the tokenizer has {tokenizer.size} tokens, the model only {vocabulary}")
    module = model(checked, vocabulary)
    put_weights(module, load_tensors(folder / "model.safetensors"), str(folder / "model.safetensors"))
    module.eval()
    return Loaded(folder, module, tokenizer, str(about.get("task", "lm")), about)


def find_model(place: str | Path) -> Path:
    """The model folder behind a path: the folder itself, or a run's `best`, or its `last`."""
    folder = Path(place)
    if not folder.exists():
        raise FolderError(f"there is no folder {folder}")
    # A kill between two renames leaves the best model under its other name until the run is resumed.
    for candidate in (folder, folder / "best", folder / f"{OLD}best", folder / "last", folder / f"{OLD}last"):
        if (candidate / "config.json").exists():
            return candidate
    if (folder / "config.yaml").exists():
        raise FolderError(f"{folder} is a run that has not saved a model yet")
    raise FolderError(f"{folder} is no model folder: it has no config.json")


def _write_json(path: Path, value: dict[str, Any]) -> None:
    path.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def _read_json(path: Path) -> dict[str, Any]:
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise FolderError(f"{path.parent} is no model folder: it has no {path.name}") from None
    except (json.JSONDecodeError, UnicodeDecodeError) as problem:
        raise FolderError(f"{path} is not valid JSON: {problem}") from None
    if not isinstance(value, dict):
        raise FolderError(f"{path} should hold a JSON object")
    return value
