"""Texts that a model wrote at each validation: kept in metrics.jsonl, and shown with the run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import legato
from legato.inspect.report.run_view import LONGEST_TEXT, MOST_TEXTS, read_rows, run_view
from tiny_tasks import tiny


def rows_of(run: Path, kind: str) -> list[dict[str, Any]]:
    rows = [json.loads(line) for line in (run / "metrics.jsonl").open(encoding="utf-8")]
    return [row for row in rows if row["kind"] == kind]


@pytest.mark.parametrize("task", ["lm", "translation", "classification", "image-classification"])
def test_each_validation_has_its_samples_and_the_view_shows_them(task: str, tmp_path: Path) -> None:
    legato.train(task, tiny(task, tmp_path / "data", train__samples=2), out=tmp_path / "run", quiet=True)
    validations, samples = (rows_of(tmp_path / "run", kind) for kind in ("valid", "samples"))
    assert [row["step"] for row in samples] == [row["step"] for row in validations] == [2, 4]
    for row in samples:
        assert set(row) >= {"step", "kind", "texts"}
        assert 1 <= len(row["texts"]) <= 2
        assert all(isinstance(text, str) and text for text in row["texts"])
    shown = [row for row in run_view(tmp_path / "run")["rows"] if row["kind"] == "samples"]
    assert [(row["step"], row["texts"]) for row in shown] == [(row["step"], row["texts"]) for row in samples]


def test_who_wants_no_samples_has_none(tmp_path: Path) -> None:
    legato.train("lm", tiny("lm", tmp_path / "data", train__samples=0), out=tmp_path / "run", quiet=True)
    assert len(rows_of(tmp_path / "run", "valid")) == 2
    assert rows_of(tmp_path / "run", "samples") == []


def test_a_run_that_goes_on_keeps_its_samples_and_adds_its_own(tmp_path: Path) -> None:
    legato.train("lm", tiny("lm", tmp_path / "data", train__samples=1), out=tmp_path / "run", quiet=True)
    before = rows_of(tmp_path / "run", "samples")
    legato.train({"train.steps": 6}, resume=tmp_path / "run", quiet=True)
    after = rows_of(tmp_path / "run", "samples")
    assert after[:2] == before
    assert [row["step"] for row in after] == [2, 4, 6]


def test_very_long_and_very_many_samples_are_cut_for_the_view(tmp_path: Path) -> None:
    row = {"step": 1, "kind": "samples", "texts": ["x" * (LONGEST_TEXT + 1), *("y" for _ in range(MOST_TEXTS))]}
    nonsense = {"step": 2, "kind": "samples", "texts": "no list"}
    (tmp_path / "metrics.jsonl").write_text(f"{json.dumps(row)}\n{json.dumps(nonsense)}\n", encoding="utf-8")
    first, second = read_rows(tmp_path).rows
    assert first["texts"] == ["x" * LONGEST_TEXT, *("y" for _ in range(MOST_TEXTS - 1))]
    assert second == {"step": 2, "kind": "samples"}
