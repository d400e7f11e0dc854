"""`legato inspect`: what is printed, saved and refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import legato
from legato.inspect.trace import Trace

QUICK: dict[str, Any] = {"train.steps": 2, "train.tensorboard": "false", "device": "cpu", "model.width": 16}


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("inspected")
    (folder / "text.txt").write_text("the dog runs and the dog sleeps\n" * 40, encoding="utf-8")
    text = {"data.train": str(folder / "text.txt"), "data.valid_share": 0.3, "tokenizer": "word"}
    text |= {"train.batch_tokens": 64, "data.window": 16, "model.layers": 2}
    legato.train("lm", {**QUICK, **text, "model": "gpt2", "model.heads": 2}, out=folder / "gpt2", quiet=True)
    legato.train("lm", {**QUICK, **text, "model": "lstm"}, out=folder / "lstm", quiet=True)
    pairs = {"data.train": "toy:language", "data.toy.count": 50, "model": "seq2seq", "model.layers": 1}
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
