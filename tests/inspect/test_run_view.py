"""The course of a run in a report: the rows of metrics.jsonl as they are, and never more than a file should hold."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from legato.inspect.report import run_view as module
from legato.inspect.report.page import Report
from legato.inspect.report.run_view import MOST_ROWS, about_run, read_rows, run_of, run_view


def run_with(folder: Path, rows: list[dict[str, Any]], settings: str = "task: lm\nmodel: lstm\n") -> Path:
    (folder / "config.yaml").write_text(settings)
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


def test_rows_are_the_files_own(tmp_path: Path) -> None:
    rows = [
        {"step": 1, "kind": "train", "loss": 0.1 + 0.2, "lr": 1e-323, "tokens": 2**53 - 1},
        {"step": 1, "kind": "valid", "bleu": 41.77128872448578, "loss": None},
    ]
    view = run_view(run_with(tmp_path, rows))
    assert view["rows"] == rows
    assert (view["every"], view["model"], view["task"]) == (1, "lstm", "lm")
    report = Report("a run", "", {"name": "lstm"}, views={"run": view})
    assert json.loads(json.dumps(report.told()))["views"]["run"]["rows"] == rows
    assert "\\u003cscript>" in Report("", "", {}, views={"run": {"rows": [{"texts": ["<script>"]}]}}).html()


def test_of_very_many_rows_of_training_some_are_kept_with_the_last_and_every_validation(tmp_path: Path) -> None:
    rows: list[dict[str, Any]] = [
        {"step": step, "kind": "train", "loss": 1.0} for step in range(1, 2 * MOST_ROWS + 2)
    ]
    rows += [{"step": step, "kind": "valid", "loss": 1.0} for step in range(100)]
    view = run_view(run_with(tmp_path, rows))
    kinds = [row["kind"] for row in view["rows"]]
    assert (view["every"], kinds.count("valid")) == (3, 100)
    assert kinds.count("train") <= MOST_ROWS
    assert max(row["step"] for row in view["rows"]) == 2 * MOST_ROWS + 1


def test_a_long_file_is_read_in_pieces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [{"step": step, "kind": "train", "loss": step / 7} for step in range(200)]
    run = run_with(tmp_path, rows)
    monkeypatch.setattr(module, "read_rows", lambda *asked: read_rows(*asked, most=100))
    assert run_view(run)["rows"] == rows
    (run / "metrics.jsonl").write_text("x" * 500 + "\n" + json.dumps(rows[0]) + "\n")  # a line that is none of ours
    assert run_view(run)["rows"] == [rows[0]]


@pytest.mark.parametrize(
    "settings", ["", "nonsense", "task: [", "model: 3\ntask: {a: 1}\ntrain: []\n", "train: {steps: x}\n"]
)
def test_settings_that_say_nothing_leave_the_rows(tmp_path: Path, settings: str) -> None:
    run = run_with(tmp_path, [{"step": 1, "kind": "train", "loss": 2.0}], settings)
    assert len(run_view(run)["rows"]) == 1
    assert set(about_run(run)) == {"folder", "task", "model", "steps"}


def test_a_run_is_known_by_its_settings_and_by_its_models(tmp_path: Path) -> None:
    run = run_with(tmp_path, [])
    (run / "best").mkdir()
    (run / "best" / "config.json").write_text("{}")
    assert run_of(run) == run_of(run / "best") == run_of(str(run / "last")) == run
    assert run_of(run / "checkpoints") is None
    assert run_of(tmp_path / "nothing") is None
    (run / "config.json").write_text("{}")  # a model folder with somebody's settings in it
    assert run_of(run) is None
    assert read_rows(tmp_path / "nothing").rows == []
