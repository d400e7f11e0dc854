"""`legato eval` from end to end: the figures, and that Python gives the same."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import legato


def test_evaluating_prints_every_figure(command: Any, home: Path) -> None:
    answer = command("eval", home / "run", f"data.test={home}/valid.txt")
    assert answer.code == 0
    for name in ("loss", "perplexity", "word perplexity", "bits per byte", "tokens"):
        assert name in answer.out


def test_evaluating_with_json_gives_what_training_found(command: Any, home: Path) -> None:
    scores = json.loads(command("eval", home / "run", f"data.test={home}/valid.txt", "--json").out)
    result = json.loads((home / "run" / "result.json").read_text())["metrics"]
    assert scores["loss"] == pytest.approx(result["valid.loss"], rel=1e-6)
    assert scores["model"] == f"{home}/run/best"
    assert len(scores["sha256"]) == 64


def test_python_gives_the_same_scores_as_the_command(command: Any, home: Path) -> None:
    scores = json.loads(command("eval", home / "run", f"data.test={home}/valid.txt", "--json").out)
    assert legato.load(home / "run").evaluate(test=f"{home}/valid.txt")["loss"] == scores["loss"]
