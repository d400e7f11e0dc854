"""Tagged sentences small enough for a test: names that a model learns in a moment."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from legato.data.formats.tag_schemes import Scheme, convert

NAMES = {"PER": ["Anna", "Carl Orff"], "LOC": ["Rome", "New York City"]}
OTHERS = ["sees", "in", "the", "rain", "and", "goes", "to", "."]

SMALL: dict[str, Any] = {
    "model.width": 16,
    "model.embedding": 12,
    "model.dropout": 0.0,
    "train.batch_rows": 8,
    "train.epochs": 6,
    "train.lr": 0.03,
    "train.validate_every": 1000,
    "train.samples": 0,
    "train.tensorboard": "false",
    "device": "cpu",
}


def sentences(count: int, seed: int = 0, scheme: Scheme = "iob2") -> list[tuple[list[str], list[str]]]:
    """Words and tags; every sentence has a name."""
    draw = random.Random(seed)
    found = []
    for _ in range(count):
        words: list[str] = []
        tags: list[str] = []
        for _ in range(draw.randint(1, 3)):
            kind = draw.choice(sorted(NAMES))
            name = draw.choice(NAMES[kind]).split()
            between = draw.choices(OTHERS, k=draw.randint(1, 3))
            words += [*name, *between]
            tags += [f"B-{kind}", *[f"I-{kind}"] * (len(name) - 1), *["O"] * len(between)]
        found.append((words, convert(tags, scheme)))
    return found


def write_columns(path: Path, rows: Sequence[tuple[list[str], list[str]]]) -> Path:
    """`word POS tag` lines."""
    lines = [
        "".join(f"{word} X {tag}\n" for word, tag in zip(words, tags, strict=True)) + "\n" for words, tags in rows
    ]
    path.write_text("-DOCSTART- X O\n\n" + "".join(lines), encoding="utf-8")
    return path


def small(folder: Path, scheme: Scheme = "iob1", **changes: Any) -> dict[str, Any]:
    """Settings of a run of a second; `train__lr` is train.lr."""
    train, valid = folder / "train.txt", folder / "valid.txt"
    if not train.exists():
        write_columns(train, sentences(60, 1, scheme))
        write_columns(valid, sentences(12, 2, scheme))
    texts = {"data.train": str(train), "data.valid": str(valid)}
    return {**texts, **SMALL, **{key.replace("__", "."): value for key, value in changes.items()}}
