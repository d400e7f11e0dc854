"""The studio's server and a run: it only reads, and follows what grows."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from legato.errors import LegatoError
from legato.serving import local
from legato.serving.studio import Studio
from serving.served import client_of, error_of


def test_rows_come_as_the_file_grows(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text("task: lm\nmodel: {name: lstm}\ntrain: {steps: 50}\n")
    asked = client_of(Studio(tmp_path, "cpu"))
    file = tmp_path / "metrics.jsonl"

    def rows(after: int = 0, name: str = "") -> Any:
        return asked.get("/api/run", params={"after": after, "file": name}).json()

    assert rows() == {"rows": [], "file": "", "begin": 0, "after": 0, "more": False}
    file.write_text(
        '{"step": 1, "kind": "train", "loss": 2.5000000000000004, "lr": 5.138277969773952e-11}\n{"step": 2, "ki'
    )
    first = rows()
    assert first["rows"] == [{"step": 1, "kind": "train", "loss": 2.5000000000000004, "lr": 5.138277969773952e-11}]
    assert rows(first["after"], first["file"])["rows"] == []
    with file.open("a") as more:
        more.write('nd": "valid", "loss": NaN, "note": "x", "ok": true}\nnonsense\n{"kind": "train"}\n')
        more.write('{"step": 2, "kind": "samples", "texts": ["<script>", "b"]}\n')
    second = rows(first["after"], first["file"])
    assert second["rows"] == [
        {"step": 2, "kind": "valid", "loss": None},
        {"step": 2, "kind": "samples", "texts": ["<script>", "b"]},
    ]
    assert second["after"] == file.stat().st_size
    fresh = tmp_path / "fresh"  # as a run does that is taken up again
    fresh.write_text('{"step": 1, "kind": "train", "loss": 9}\n' + " " * 500 + "\n")
    fresh.replace(file)
    again = rows(second["after"], second["file"])
    assert (again["begin"], again["rows"]) == (0, [{"step": 1, "kind": "train", "loss": 9}])
    file.write_text("")  # shorter than it was
    assert rows(again["after"], again["file"])["rows"] == []
    for wrong in ("-1", "x", ""):
        error_of(asked.get("/api/run", params={"after": wrong}), 400)


def test_a_run_without_a_model_is_followed_until_it_has_one(runs: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    run.mkdir()
    shutil.copy(runs / "lstm" / "config.yaml", run)
    shown = Studio(run, "cpu")
    asked = client_of(shown)
    told = asked.get("/api/studio").json()
    assert (told["model"], told["reads"], told["run"]["model"]) == (None, [], "lstm")
    refused = asked.post("/api/inspect", json={"text": "dog"})
    assert "has not saved a model yet; it does at its first validation" in error_of(refused, 409)
    shutil.copytree(runs / "lstm" / "best", run / "best")
    assert asked.get("/api/studio").json()["model"]["name"] == "lstm"
    assert asked.post("/api/inspect", json={"text": "dog"}).status_code == 200


def test_a_better_model_takes_the_place_of_the_last_one(runs: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    shutil.copytree(runs / "lstm", run)
    shown = Studio(run, "cpu")
    before = shown.model()
    assert shown.model() is before
    shutil.rmtree(run / "last")
    (run / "best").rename(tmp_path / "old")
    assert shown.model() is before  # it is just being exchanged
    shutil.copytree(tmp_path / "old", run / "best")
    assert shown.model() is not before


def test_what_is_no_run_has_no_rows(runs: Path, tmp_path: Path) -> None:
    shutil.copytree(runs / "lstm" / "best", tmp_path / "model")
    asked = client_of(Studio(tmp_path / "model", "cpu"))
    assert asked.get("/api/studio").json()["run"] is None
    assert "is no run" in error_of(asked.get("/api/run"), 404)


def test_a_folder_that_is_no_model_is_refused_before_anything_is_opened(tmp_path: Path) -> None:
    with pytest.raises(LegatoError, match="is no model folder"):
        local.serve_studio(Studio(tmp_path, "cpu"), print, browser=False)
