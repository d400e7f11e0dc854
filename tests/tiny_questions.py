"""Questions small enough for a test: who did it, and when, in a sentence or two of padding."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

NAMES = ("Anna", "Bert", "Clara", "Dora", "Emil", "Fritz")
YEARS = ("1806", "1813", "1871", "1914", "1945")
FILLING = ("the day was long", "nobody saw it", "rain fell on the town", "all went well")

SMALL: dict[str, Any] = {
    "model.width": 32,
    "model.layers": 1,
    "train.batch_rows": 16,
    "train.samples": 0,
    "train.log_every": 10,
    "train.tensorboard": "false",
    "device": "cpu",
}


def context(draw: random.Random, filling: int = 2, name: bool = True) -> tuple[str, dict[str, tuple[str, int]]]:
    """A text, and what answers "who" and "when" with its place; without a name nothing answers "who"."""
    parts = draw.choices(FILLING, k=filling)
    who, when = draw.choice(NAMES), draw.choice(YEARS)
    parts.insert(draw.randrange(filling + 1), f"{who} did it in {when}" if name else f"it was done in {when}")
    text = ". ".join(parts) + "."
    answers = {"When was it?": (when, text.index(when))}
    return text, answers | ({"Who did it?": (who, text.index(who))} if name else {})


def squad(path: Path, articles: int = 6, each: int = 6, *, silent: bool = False, seed: int = 0) -> Path:
    """A SQuAD file; with `silent` every third text says nothing of who did it."""
    draw = random.Random(seed)
    data = []
    for number in range(articles):
        paragraphs = []
        for place in range(each):
            named = not (silent and place % 3 == 0)
            text, answers = context(draw, name=named)
            qas = []
            for question in ("Who did it?", "When was it?"):
                found = [answers[question]] if question in answers else []
                told = [{"text": answer, "answer_start": start} for answer, start in found]
                asked = {"question": question, "id": f"{number}-{place}-{question[:3]}", "answers": told}
                qas.append({**asked, "is_impossible": not told} if silent else asked)
            paragraphs.append({"context": text, "qas": qas})
        data.append({"title": f"Article {number}", "paragraphs": paragraphs})
    path.write_text(json.dumps({"version": "2.0" if silent else "1.1", "data": data}), encoding="utf-8")
    return path
