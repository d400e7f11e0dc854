"""Vectors of sentences: Legato beside `sentence-transformers`, the same folder and the same texts.

    python benchmarks/embed.py MODEL [--file texts.txt] [--device cuda] [--batch-size 32] [--rounds 5]

Both sides get all texts at once and sort them by length themselves. Rounds alternate, so that a change of clock or of
load meets both alike. Left out, the texts are sentences of 3 to 40 words drawn from a small vocabulary. The last line
printed is JSON: texts a second of each side, the ratio, and the largest difference between two vectors.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

import legato
from legato.training.devices import choose_device, describe

WORDS = (
    *("the", "a", "one", "two", "old", "new", "red", "dog", "cat", "man", "house", "car", "river", "runs", "sleeps"),
    *("sees", "finds", "in", "on", "under", "with", "and", "quickly"),
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("--file", type=Path)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--texts", type=int, default=1000)
    given = parser.parse_args()
    from sentence_transformers import SentenceTransformer

    device = choose_device(given.device)
    draw = random.Random(0)
    if given.file is None:
        texts = [" ".join(draw.choices(WORDS, k=draw.randint(3, 40))) for _ in range(given.texts)]
    else:
        texts = given.file.read_text(encoding="utf-8").splitlines()
    ours = legato.load(given.model, str(device))
    theirs = SentenceTransformer(str(given.model), device=str(device))
    sides: dict[str, Callable[[], Any]] = {
        "legato": lambda: ours.embed(texts, batch_size=given.batch_size),
        "sentence-transformers": lambda: theirs.encode(texts, batch_size=given.batch_size, show_progress_bar=False),
    }
    found = {name: side() for name, side in sides.items()}  # once before the clock runs
    speeds: dict[str, list[float]] = {name: [] for name in sides}
    for _ in range(given.rounds):
        for name, side in sides.items():
            start = time.perf_counter()
            side()
            if device.type == "cuda":
                torch.cuda.synchronize()
            speeds[name].append(len(texts) / (time.perf_counter() - start))
    middle = {name: statistics.median(rounds) for name, rounds in speeds.items()}
    for name, speed in middle.items():
        print(f"{name:24} {speed:10,.1f} texts a second")
    left, right = found.values()
    told = {
        "benchmark": "embed",
        "device": describe(device),
        "texts": len(texts),
        "texts_per_second": {name: round(speed, 1) for name, speed in middle.items()},
        "ratio": round(middle["legato"] / middle["sentence-transformers"], 3),
        "largest_difference": float(np.abs(left - right).max()),
    }
    print(json.dumps(told))


if __name__ == "__main__":
    main()
