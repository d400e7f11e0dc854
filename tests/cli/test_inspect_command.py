"""`legato inspect`: what is printed, saved and refused."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

import legato
from legato.inspect.trace import Trace
from refusals import is_one_line
from reports import reports_in
from tiny_tasks import tiny

QUICK: dict[str, Any] = {"train.steps": 2, "train.samples": 0, "train.tensorboard": "false"}
QUICK |= {"device": "cpu", "model.width": 16}


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("inspected")
    (folder / "text.txt").write_text("the dog runs and the dog sleeps\n" * 40, encoding="utf-8")
    text = {"data.train": str(folder / "text.txt"), "data.valid_share": 0.3, "tokenizer": "word"}
    text |= {"train.batch_tokens": 64, "data.window": 16, "model.layers": 2}
    legato.train("lm", {**QUICK, **text, "model": "gpt2", "model.heads": 2}, out=folder / "gpt2", quiet=True)
    legato.train("lm", {**QUICK, **text, "model": "lstm"}, out=folder / "lstm", quiet=True)
    pairs = {"data.train": "toy:language", "data.toy.count": 50, "data.toy.valid_count": 5}
    pairs |= {"model": "seq2seq", "model.layers": 1}
    legato.train("translation", {**QUICK, **pairs}, out=folder / "pairs", quiet=True)
    return folder


def test_a_summary_is_printed(runs: Path, command: Any) -> None:
    told = command("inspect", runs / "gpt2", "the dog runs and the dog").out
    assert "<Trace of gpt2 on" in told
    for words in ("what is inside", "what it would say", "heads", "decoder.N.attention.weights", "induction"):
        assert words in told
    assert "where it looks" not in told
    recurrent = command("inspect", runs / "lstm", "the dog").out
    assert "lstm.N.forget_gate" in recurrent
    assert "heads" not in recurrent
    assert "where it looks (decoder.attention.weights)" in command("inspect", runs / "pairs", "a b").out


def test_json_has_the_same_tables(runs: Path, command: Any) -> None:
    told = json.loads(command("inspect", runs / "pairs", "a b", "--written", "b a", "--json").out)
    titles = [table["title"] for table in told["tables"]]
    assert titles == ["what is inside", "what it would say", "heads", "where it looks (decoder.attention.weights)"]
    assert (told["name"], told["task"]) == ("seq2seq", "translation")
    assert all(len(row) == len(table["columns"]) for table in told["tables"] for row in table["rows"])


def test_a_trace_is_saved_and_parts_are_chosen(runs: Path, command: Any, tmp_path: Path) -> None:
    command("inspect", runs / "gpt2", "the dog", "--layers", "1", "--heads", "0", "--save", tmp_path / "t")
    trace = Trace.load(tmp_path / "t")
    assert trace["decoder.1.attention.weights"].values.shape[0] == 1
    assert "decoder.0.hidden" not in trace
    (tmp_path / "file").write_text("x")
    answer = command("inspect", runs / "gpt2", "the dog", "--save", tmp_path / "file")
    assert answer.code == 2
    assert "the trace cannot be saved to" in answer.err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ((" ",), "there is no text to look at; give one"),
        (("the dog", "--layers", "a"), "--layers 'a': numbers from 0 with commas between them are wanted"),
        (("the dog", "--layers", "1,99"), "has the layers 0 to 1, and not 99"),
        (("the dog", "--heads", "7"), "has the heads 0 to 1, and not all of [7]"),
        (("the dog", "--only", "("), "is no regular expression"),
        (("the dog", "--written", "x"), "leave out what is written"),
        (("the dog " * 30,), "reads 16 at most; shorten it"),
    ],
)
def test_what_cannot_be_is_said_in_a_line(runs: Path, command: Any, words: tuple[str, ...], said: str) -> None:
    answer = command("inspect", runs / "gpt2", *words)
    assert answer.code == 2
    assert said in answer.err
    assert answer.err.count("\n") == 1


@pytest.mark.slow
def test_one_of_several_tasks_is_inspected(command: Any, tmp_path: Path) -> None:
    legato.train("unit", tiny("unit", tmp_path / "data", train__steps=1), out=tmp_path / "run", quiet=True)
    run, picture = tmp_path / "run", tmp_path / "data" / "0.png"
    told = command("inspect", run, f"{picture}\twhat colour is it?", "--task", "colours").out
    assert "<Trace of unit on 5 patches (image), 4 patches (grid), 4 patches and 7 tokens (source)" in told
    assert "where it looks (decoder.0.cross.weights)" in told
    assert "query 2" in command("inspect", run, picture, "--task", "boxes").out
    for words, said in (
        ([picture], "say which task; it has colours, boxes, films"),
        ([picture, "--task", "none"], "there is no task 'none'"),
        ([picture, "--task", "colours"], "has no question; write one behind it"),
        (["what colour is it?", "--task", "colours"], "has no picture; name one before it"),
        (["a gem", "--task", "boxes"], "is no file, and this model reads pictures, not text"),
        ([picture, "--task", "films"], "is a picture, but this model reads text; give it a text"),
    ):
        answer = command("inspect", run, *words)
        assert answer.code == 2
        assert said in answer.err
        assert answer.err.count("\n") == 1


@pytest.mark.slow
def test_a_report_is_one_page_and_of_a_run_it_has_the_run(runs: Path, command: Any, tmp_path: Path) -> None:
    page = tmp_path / "folder" / "dog.html"
    answer = command("inspect", runs / "lstm", "the dog", "--html", page, "--json")
    assert [table["title"] for table in json.loads(answer.out)["tables"]][:1] == ["what is inside"]
    (told,) = reports_in(page)
    assert told["given"] == "the dog"
    assert {"map", "cells", "run"} <= set(told["views"])
    rows = [json.loads(line) for line in (runs / "lstm" / "metrics.jsonl").open()]
    assert told["views"]["run"]["rows"] == rows
    shutil.copytree(runs / "lstm" / "best", tmp_path / "alone")
    command("inspect", tmp_path / "alone", "the dog", "--html", page)
    assert "run" not in reports_in(page)[0]["views"]
    (tmp_path / "file").write_text("x")
    refused = command("inspect", runs / "lstm", "the dog", "--html", tmp_path / "file" / "x.html")
    assert (refused.code, refused.err.count("\n")) == (2, 1)
    assert "the report cannot be written to" in refused.err


def test_a_place_for_a_report_is_looked_at_before_the_model_is(runs: Path, command: Any, tmp_path: Path) -> None:
    shutil.copytree(runs / "lstm" / "best", tmp_path / "broken")
    (tmp_path / "broken" / "model.safetensors").write_bytes(b"")  # which whoever reads it says
    (tmp_path / "file").write_text("x")
    for place, said in ((tmp_path, "which is a folder"), (tmp_path / "file" / "x.html", "is no folder")):
        is_one_line(command("inspect", tmp_path / "broken", "the dog", "--html", place), said)


def test_a_token_that_cannot_be_seen_has_a_sign(command: Any, home: Path) -> None:
    told = json.loads(command("inspect", home / "run", "a dog", "--json").out)
    (said,) = [table for table in told["tables"] if table["title"] == "what it would say"]
    assert "␣" in [row[1] for row in said["rows"]]
    assert all(cell.strip() for row in said["rows"] for cell in row if isinstance(cell, str))


def test_a_text_is_needed_where_there_is_no_page_to_type_one_into(runs: Path, command: Any) -> None:
    answer = command("inspect", runs / "lstm")
    assert answer.code == 2
    assert answer.err == "legato: Invalid value for TEXT: a text is needed, or --serve, where one can be typed\n"
