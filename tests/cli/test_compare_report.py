"""`legato compare --html`: the runs of a comparison in one page; bad places are refused before anything trains."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

import legato
from legato.errors import DataError
from legato.inspect.report.comparison import LONGEST_NAME, comparison_report
from legato.inspect.report.run_view import read_rows
from legato.runs.compare import Comparison
from refusals import is_one_line
from reports import reports_in
from tiny_runs import small, words


def settings(home: Path) -> list[str]:
    given = {key: value for key, value in small(home, train__steps=4).items() if key != "model"}
    return [*words(given), "model=[elman,lstm]", "train.samples=1"]


def test_the_page_has_every_run_the_table_and_the_models(command: Any, home: Path, tmp_path: Path) -> None:
    page, out = tmp_path / "new folder" / "c.html", tmp_path / "c"
    answer = command("compare", "lm", *settings(home), "seed=[1,2]", f"out={out}", "--html", page, "--quiet")
    assert answer.code == 0, answer.err
    assert answer.out.splitlines()[-1] == f"report: {page}"
    (told,) = reports_in(page)
    assert (told["opens"], told["given"], told["model"]["name"]) == ("runs", str(out), "elman, lstm")
    runs = told["views"]["runs"]["runs"]
    assert [(run["name"], run["entry"]) for run in runs] == [
        *(("elman, seed 1", 0), ("elman, seed 2", 0), ("lstm, seed 1", 1), ("lstm, seed 2", 1))
    ]
    for run in runs:
        assert run["rows"] == read_rows(Path(run["folder"])).rows
        assert {row["kind"] for row in run["rows"]} == {"train", "valid", "samples"}
        assert run["tokens_per_step"] == 128
    table = told["views"]["runs"]["table"]
    assert [row[0] for row in table["rows"]] == ["elman", "lstm"]
    assert len(table["columns"]) == len(table["rows"][0])
    assert table["caption"].splitlines()[-1].startswith("The table has the scores of each run's best model")
    sizes = [entry["parameters"]["mean"] for entry in json.loads((out / "compare.json").read_text())["entries"]]
    models = told["views"]["map"]["models"]
    assert [(model["name"], model["root"]["parameters"]) for model in models] == list(
        zip(("elman", "lstm"), sizes, strict=True)
    )


def test_with_json_the_report_adds_no_line(command: Any, home: Path, tmp_path: Path) -> None:
    page = tmp_path / "c.html"
    answer = command("compare", "lm", *settings(home), f"out={tmp_path}/c", "--html", page, "--json")
    assert json.loads(answer.out)["entries"][0]["label"] == "elman"
    assert [run["name"] for run in reports_in(page)[0]["views"]["runs"]["runs"]] == ["elman", "lstm"]


@pytest.mark.parametrize(
    ("place", "said"),
    [
        ("", "which is a folder; name a file in it"),
        ("file/c.html", "file is no folder; name another place"),
        ("file/more/c.html", "file is no folder; name another place"),
        ("out", "would lie where out="),
        ("nothing", "would lie where out="),
    ],
)
def test_a_place_that_cannot_be_is_refused_before_anything_trains(
    place: str, said: str, command: Any, home: Path, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("x")
    out = tmp_path / ("nothing/out" if place == "nothing" else "out")
    is_one_line(command("compare", "lm", *settings(home), f"out={out}", "--html", tmp_path / place), said)
    assert not out.exists()


def compared(home: Path, out: Path, **changes: Any) -> Comparison:
    return legato.compare(
        "lm", {**small(home, train__steps=1), "model": ["elman", "lstm"], **changes}, out=out, quiet=True
    )


def test_runs_that_left_nothing_are_not_drawn(home: Path, tmp_path: Path) -> None:
    comparison = compared(home, tmp_path / "c")
    (metrics, *_) = files = [entry.results[0].run / "metrics.jsonl" for entry in comparison.entries]
    metrics.unlink()
    assert comparison_report(comparison).views["runs"]["runs"][0]["rows"] == []
    for entry in comparison.entries:  # without their models their runs are drawn
        for name in ("best", "last"):
            shutil.rmtree(entry.results[0].run / name, ignore_errors=True)
    assert set(comparison_report(comparison).views) == {"runs"}
    files[1].unlink()
    with pytest.raises(DataError, match="have left neither metrics nor models, so there is nothing to draw"):
        comparison_report(comparison)


def test_many_names_are_not_all_at_the_top_of_the_page(home: Path, tmp_path: Path) -> None:
    comparison = compared(home, tmp_path / "c")
    comparison.entries[0].label = "x" * LONGEST_NAME
    assert comparison_report(comparison).model["name"] == "2 compared"
