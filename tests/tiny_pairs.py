"""A tiny world in three languages, and translation runs on it that take a second or two.

Sentences are one or two clauses such as "A dog runs and The cat eats.": a model of a few thousand parameters
learns them in some hundred steps, so that tests can ask for translations that are right.
"""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest

import legato

WORDS = {
    "en": ("A", "The", "dog", "cat", "man", "runs", "eats", "sleeps", "and"),
    "de": ("Ein", "Das", "Hund", "Katze", "Mann", "läuft", "isst", "schläft", "und"),
    "fr": ("Un", "Le", "chien", "chat", "homme", "court", "mange", "dort", "et"),
}
COUNTS = {"train": 400, "val": 12, "test": 12}
# Two of its sentences, and what they are in German.
DOG, CAT = "A dog runs.", "The cat eats and A man sleeps."
HUND, KATZE = "Ein Hund läuft.", "Das Katze isst und Ein Mann schläft."

SMALL = {
    "model": "transformer",
    "model.width": 32,
    "model.layers": 1,
    "model.heads": 2,
    "model.length": 48,
    "model.dropout": 0,
    "tokenizer.size": 400,
    "data.beams": 1,
    "train.steps": 120,
    "train.lr": 0.01,
    "train.batch_tokens": 768,
    "train.validate_every": 1000,
    "train.samples": 0,
    "train.tensorboard": "false",
    "device": "cpu",
}
# What makes it a recurrent one; it has no heads and takes any length.
SEQ2SEQ: dict[str, Any] = {
    "model": "seq2seq",
    "model__heads": None,
    "model__length": None,
    "train__lr": 0.02,
    "train__steps": 90,
}
# A run that is started for what it says or leaves, not for what it learns.
QUICK: dict[str, Any] = {"model__width": 8, "train__steps": 1}


def sentences(draw: random.Random, count: int) -> list[dict[str, str]]:
    """Each in every language."""
    made = []
    for _ in range(count):
        clauses = [(draw.choice((0, 1)), draw.choice((2, 3, 4)), draw.choice((5, 6, 7))) for _ in range(2)]
        clauses = clauses[: draw.choice((1, 2))]
        made.append(
            {
                language: f" {words[8]} ".join(" ".join(words[place] for place in clause) for clause in clauses) + "."
                for language, words in WORDS.items()
            }
        )
    return made


def write_pairs(folder: Path) -> None:
    """`train.en`, `train.de`, `train.fr`, the same of `val` and `test`."""
    draw = random.Random(1)
    for split, count in COUNTS.items():
        made = sentences(draw, count)
        for language in WORDS:
            (folder / f"{split}.{language}").write_text("".join(each[language] + "\n" for each in made))


def small_translation(folder: Path, **changes: Any) -> dict[str, Any]:
    """Settings of a small run, English to German, on files in `folder`; `train__lr` is train.lr, None leaves out."""
    if not (folder / "train.en").exists():
        write_pairs(folder)
    data = {"data.train": [f"{folder}/train.en", f"{folder}/train.de"]}
    data["data.valid"] = [f"{folder}/val.en", f"{folder}/val.de"]
    over = {key.replace("__", "."): value for key, value in changes.items()}
    return {key: value for key, value in {**data, **SMALL, **over}.items() if value is not None}


def many_languages(folder: Path, **changes: Any) -> dict[str, Any]:
    """The same with four directions between English and the others; German to French is never trained."""
    files = {"data__train": f"{folder}/train.{{}}", "data__valid": f"{folder}/val.{{}}"}
    directions = {"data__directions": ["en-de", "de-en", "en-fr", "fr-en"]}
    return small_translation(folder, **{**files, **directions, "train__steps": 200, **changes})


def train_translation(folder: Path, name: str, settings: dict[str, Any]) -> Path:
    """A run under `folder`, with a cache of its own, as module-wide fixtures need it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LEGATO_CACHE", str(folder / "cache"))
        return legato.train("translation", settings, out=folder / name, quiet=True).run


def in_words(settings: dict[str, Any]) -> list[str]:
    """Settings as the command line takes them."""
    written = {key: f"[{','.join(value)}]" if isinstance(value, list) else value for key, value in settings.items()}
    return [f"{key}={value}" for key, value in written.items()]


def metrics_of(run: Path) -> dict[str, Any]:
    """What a run that has ended says of itself."""
    metrics: dict[str, Any] = json.loads((run / "result.json").read_text())["metrics"]
    return metrics
