"""Plain pictures with questions about their colour, and a run that has learned to answer them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

import legato

SMALL: dict[str, Any] = {
    "model.width": 24,
    "model.dropout": 0.0,
    "head.dropout": 0.0,
    "model.encoder": {"name": "vit", "image": 16, "patch": 8, "width": 24, "layers": 1, "heads": 2},
    "train.lr": 0.01,
    "train.batch_rows": 16,
    "train.checkpoint_every": 1000,
    "device": "cpu",
}
COLOURS = {"red": (220, 30, 30), "green": (30, 200, 40), "blue": (20, 60, 220), "white": (250, 250, 250)}


def picture(colour: str, seed: int) -> Image.Image:
    noise = np.random.default_rng(seed).integers(-9, 10, (16, 16, 3))
    return Image.fromarray((np.array(COLOURS[colour]) + noise).clip(0, 255).astype(np.uint8))


def write_questions(folder: Path, name: str = "train.csv", count: int = 24, first: int = 0) -> Path:
    """A table of plain pictures: what colour each has, and whether it has one."""
    (folder / "images").mkdir(exist_ok=True, parents=True)
    lines = ["image,question,answer"]
    for number in range(first, first + count):
        colour = list(COLOURS)[number % 4]
        picture(colour, number).save(folder / "images" / f"{number}.png")
        other = list(COLOURS)[(number // 4) % 4]
        lines += [
            f"{number}.png,What colour is it?,{colour}",
            f"{number}.png,Is it {other}?,{'yes' if other == colour else 'no'}",
        ]
    (folder / name).write_text("\n".join(lines) + "\n")
    return folder / name


def settings(folder: Path, **more: Any) -> dict[str, Any]:
    return {**SMALL, "data.train": str(folder / "train.csv"), **{k.replace("__", "."): v for k, v in more.items()}}


def train_to_see(folder: Path) -> Path:
    """A folder with a run that sees colours, and pictures that it has not seen, 100 and on."""
    write_questions(folder)
    write_questions(folder, "test.csv", 8, first=100)
    given = settings(folder, data__test=str(folder / "test.csv"), train__epochs=25)
    legato.train("vqa", given, out=folder / "run", quiet=True)
    return folder
