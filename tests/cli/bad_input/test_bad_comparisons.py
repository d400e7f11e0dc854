"""Comparisons that make no sense are refused in one line."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from refusals import is_one_line


@pytest.mark.parametrize(
    ("words", "part"),
    [
        (["lm"], "only one thing to compare"),
        (["lm", "model=[elman,lstn]"], "there is no model 'lstn'"),
        (["lm", "model=[elman,lstm]", "match=width"], "match=width"),
        (["model=[elman,lstm]"], "what should be compared?"),
        (["lm", "model=[elman,lstm]", "data.train=no.txt"], "there is no file no.txt"),
        (["no.yaml", "lm"], "there is no file no.yaml"),
    ],
)
def test_a_comparison_that_makes_no_sense_is_refused(
    words: list[str], part: str, command: Any, home: Path, tmp_path: Path
) -> None:
    out = tmp_path / "compared"
    is_one_line(command("compare", *words, f"out={out}"), part)
    assert not out.exists()


def test_a_comparison_of_unequal_budgets_is_refused(command: Any, tmp_path: Path) -> None:
    toy = "task: lm\ndata: {train: 'toy:copy', toy: {count: 50}}\n"
    (tmp_path / "a.yaml").write_text(f"{toy}model: elman\ntrain: {{steps: 5}}\n")
    (tmp_path / "b.yaml").write_text(f"{toy}model: lstm\ntrain: {{steps: 6}}\n")
    is_one_line(
        command("compare", tmp_path / "a.yaml", tmp_path / "b.yaml"),
        "12,288 tokens, 'a' on 10,240",
        "set train.steps",
    )


def test_a_comparison_whose_windows_waste_tokens_is_refused(command: Any, tmp_path: Path) -> None:
    words = ("compare", "lm", "data.train=builtin:stdlib", "tokenizer=byte", "data.window=[64,100]", "train.steps=2")
    is_one_line(command(*words, f"out={tmp_path}/c"), "4,000 tokens", "4,096")


def test_a_comparison_that_may_stop_early_is_refused(command: Any, tmp_path: Path) -> None:
    words = ("compare", "lm", "model=[elman,lstm]", "data.train=toy:copy", "train.patience=2", f"out={tmp_path}/c")
    is_one_line(command(*words), "train.patience")


def test_a_comparison_into_another_one_is_refused(command: Any, home: Path, tmp_path: Path) -> None:
    (tmp_path / "compare.json").write_text("{}")
    is_one_line(command("compare", "lm", "model=[elman,lstm]", f"out={tmp_path}"), f"{tmp_path} already holds")
    assert (tmp_path / "compare.json").read_text() == "{}"
