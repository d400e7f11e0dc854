"""Tables of texts and labels small enough for a test: what the words say is what the label says."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

GOOD, BAD = ("merry", "lovely", "bright", "fine"), ("sad", "dull", "grim", "weak")
THINGS = ("film", "story", "play", "song", "book")

SMALL: dict[str, Any] = {
    "model.width": 16,
    "train.batch_rows": 8,
    "train.steps": 60,
    "train.validate_every": 30,
    "train.lr": 0.02,
    "train.log_every": 10,
    "train.samples": 1,
    "train.tensorboard": "false",
    "device": "cpu",
}


def review(draw: random.Random, good: bool) -> str:
    return f"a {draw.choice(GOOD if good else BAD)} {draw.choice(THINGS)} and {draw.choice(THINGS)}"


def write_reviews(path: Path, rows: int = 60, seed: int = 0, labels: tuple[str, str] = ("bad", "good")) -> Path:
    """A tsv with a header, `sentence` and `label`."""
    draw = random.Random(seed)
    chosen = [(draw.random() < 0.5) for _ in range(rows - 2)] + [True, False]
    lines = [f"{review(draw, good)}\t{labels[good]}\n" for good in chosen]
    path.write_text("sentence\tlabel\n" + "".join(lines))
    return path


def write_pairs(path: Path, rows: int = 60, seed: int = 0, scale: bool = False) -> Path:
    """A tsv of pairs: whether the second text is as the first, or how much of it (0 to 2)."""
    draw = random.Random(seed)
    lines = []
    for _ in range(rows):
        one, other = draw.random() < 0.5, draw.random() < 0.5
        label = f"{int(one) + int(other)}.5" if scale else str(int(one == other))
        lines.append(f"{review(draw, one)}\t{review(draw, other)}\t{label}\n")
    path.write_text("sentence1\tsentence2\tlabel\n" + "".join(lines))
    return path


def settings(folder: Path, **changes: Any) -> dict[str, Any]:
    """Settings of a run that takes about a second, on tables in `folder`; `train__lr` is train.lr."""
    train, valid = folder / "train.tsv", folder / "valid.tsv"
    if not train.exists():
        write_reviews(train, seed=1)
        write_reviews(valid, rows=20, seed=2)
    texts = {"data.train": str(train), "data.valid": str(valid)}
    return {**texts, **SMALL, **{key.replace("__", "."): value for key, value in changes.items()}}
