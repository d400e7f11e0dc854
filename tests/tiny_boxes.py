"""Pictures with boxes in them, and a detector, small enough for a test."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from tiny_pictures import write_jsonl

HEIGHT, WIDTH = 16, 24
SMALL: dict[str, Any] = {
    "model.size": [HEIGHT, WIDTH],
    "model.width": 16,
    "model.heads": 2,
    "model.layers": 1,
    "model.encoder_layers": 1,
    "model.queries": 6,
    "model.encoder": "resnet",
    "model.encoder.stem": "3x3",
    "model.encoder.embedding": 6,
    "model.encoder.widths": [8, 12],
    "model.encoder.depths": [1, 1],
    "train.steps": 4,
    "train.batch_rows": 4,
    "train.validate_every": 2,
    "train.log_every": 1,
    "train.samples": 1,
    "train.tensorboard": "false",
    "device": "cpu",
}


def painted(row: int) -> tuple[Any, list[dict[str, Any]]]:
    """A picture twice as large as what is read, with a red and a blue box in it."""
    pixels = np.full((2 * HEIGHT, 2 * WIDTH, 3), 128, np.uint8)
    objects, moved = [], 8 * (row % 5)
    for label, colour, (x, y) in (("red", (250, 0, 0), (moved, 4)), ("blue", (0, 0, 250), (40 - moved, 16))):
        pixels[y : y + 12, x : x + 8] = colour
        objects.append({"label": label, "box": [x, y, x + 8, y + 12]})
    return pixels, objects


def boxed(folder: Path, count: int = 10) -> str:
    folder.mkdir(parents=True, exist_ok=True)
    rows = []
    for number in range(count):
        pixels, objects = painted(number)
        Image.fromarray(pixels).save(folder / f"{number}.png")
        rows.append({"image": f"{number}.png", "objects": objects[: 1 + (number != 9)]})
    return write_jsonl(folder / "boxes.jsonl", rows)


def settings(table: str, **changes: Any) -> dict[str, Any]:
    return {**SMALL, "data.train": table, "data.valid": table, **changes}
