"""`legato embed`, and what else is asked of vectors on the command line."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import legato
from tiny_published import gpt2_folder
from tiny_runs import SMALL, words


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return gpt2_folder(tmp_path_factory.mktemp("m"))


def test_a_file_becomes_a_matrix(folder: Path, tmp_path: Path, command: Any) -> None:
    (tmp_path / "t.txt").write_text("the cat\na dog ran\n")
    out = tmp_path / "v.npy"
    done = command(
        "embed", folder, "--file", tmp_path / "t.txt", "--layers", "sum-all", "--pool", "last", "--out", out
    )
    assert (done.code, done.out) == (0, f"2 × 16 numbers in {out}\n")
    expected = legato.load(folder, "cpu").embed(["the cat", "a dog ran"], layers="sum-all", pool="last")
    assert np.abs(np.load(out) - expected).max() < 1e-5


@pytest.mark.parametrize("ending", ["npy", "npz", "jsonl", "tsv"])
def test_vectors_are_synced_before_their_file_has_its_name(
    ending: str, folder: Path, tmp_path: Path, command: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    done: list[str] = []
    sync, rename = os.fsync, os.replace
    monkeypatch.setattr(os, "fsync", lambda handle: done.append("sync") or sync(handle))
    monkeypatch.setattr(os, "replace", lambda fresh, place: done.append("rename") or rename(fresh, place))
    assert command("embed", folder, "the cat", "--out", tmp_path / f"v.{ending}").code == 0
    assert done == ["sync", "rename", "sync"]
    assert [path.name for path in tmp_path.iterdir()] == [f"v.{ending}"]


def test_texts_on_the_command_line_are_printed(folder: Path, command: Any) -> None:
    plain = command("embed", folder, "the cat", "a dog", "--normalize", "--batch-size", 1).out.splitlines()
    assert [len(line.split("\t")) for line in plain] == [16, 16]
    told = [json.loads(line) for line in command("embed", folder, "the cat", "a dog", "--json").out.splitlines()]
    assert [line["text"] for line in told] == ["the cat", "a dog"]
    assert np.linalg.norm([float(x) for x in plain[0].split("\t")]) == pytest.approx(1, abs=1e-5)


def test_tokens_are_printed_as_json(folder: Path, command: Any) -> None:
    told = json.loads(command("embed", folder, "the cat", "--pool", "none", "--json").out)
    assert len(told["tokens"]) == len(told["vectors"])
    assert "as JSON" in command("embed", folder, "the cat", "--pool", "none").err


def test_what_was_written_is_told_as_json(folder: Path, tmp_path: Path, command: Any) -> None:
    out = str(tmp_path / "v.npz")
    told = json.loads(command("embed", folder, "a", "--out", out, "--json").out)
    assert told == {"out": out, "texts": 1, "width": 16, "format": "npz"}


@pytest.mark.parametrize(
    ("lines", "arguments", "message"),
    [
        (["a", " ", "b"], [], "t.txt, line 2 is empty"),
        ([], [], "t.txt holds no text"),
        (["a"], ["--layers", "concat-last-4"], "needs 4 layers, and this model has 2"),
        (["a"], ["--layers", "lsat"], "did you mean 'last'"),
        (["a"], ["--pool", "cls"], "pool by last or mean"),
        (["a"], ["--pool", "avg"], "there is no pool=avg"),
        (["a"], ["--out", "v.bin"], "--out v.bin should end in one of .npy"),
        (["a"], ["--batch-size", "0"], "--batch-size"),
    ],
)
def test_a_mistake_is_one_line(
    lines: list[str], arguments: list[str], message: str, folder: Path, tmp_path: Path, command: Any
) -> None:
    (tmp_path / "t.txt").write_text("".join(f"{line}\n" for line in lines))
    done = command("embed", folder, "--file", tmp_path / "t.txt", *arguments)
    assert done.code == 2
    assert message in done.err
    assert done.err.count("\n") == 1


def test_texts_or_a_file(folder: Path, command: Any) -> None:
    assert "not both" in command("embed", folder, "a", "--file", "x").err
    assert "there is no file none.txt" in command("embed", folder, "--file", "none.txt").err


def test_train_predict_search_and_evaluate(tmp_path: Path, command: Any) -> None:
    pairs = tmp_path / "pairs.tsv"
    pairs.write_text("".join(f"{a} {b}\t{b} {a}\n" for a in "abcdefgh" for b in "klmnop"))
    scores = tmp_path / "scores.tsv"
    scores.write_text("sentence1\tsentence2\tscore\na k\tk a\t5\na k\tb m\t0.5\nb m\tm b\t4\n")
    settings = {key: value for key, value in SMALL.items() if key not in ("data.window", "train.batch_tokens")}
    run = tmp_path / "run"
    done = command("train", "embedding", *words({**settings, "data.train": pairs, "tokenizer": "word"}), f"out={run}")
    assert done.code == 0
    assert "reading column 1 as a text" in done.out + done.err
    assert "mrr" in done.out + done.err
    cosine = command("predict", run, "a k\tk a").out
    assert -1 <= float(cosine) <= 1.0001
    (tmp_path / "lines.txt").write_text("k a\nm b\nzz\n")
    found = command("predict", run, "k a", "--search", tmp_path / "lines.txt", "--nbest", 2).out.splitlines()
    assert found[0] == "k a\t1.0000"
    assert len(found) == 2
    several = command("predict", run, "k a", "m b", "--search", tmp_path / "lines.txt", "--nbest", 1).out
    assert several == "0\tk a\t1.0000\n1\tm b\t1.0000\n"
    told = json.loads(command("predict", run, "k a", "--search", tmp_path / "lines.txt", "--json").out)
    assert told["answers"][0]["line"] == 1
    assert "two texts with a tab" in command("predict", run, "k a").err
    scored = json.loads(command("eval", run, f"data.test={scores}", "--json").out)
    assert scored["pairs"] == 3
    assert scored["signature"].startswith("cosine|scipy:")
    assert "furthest off" in command("eval", run, f"data.test={scores}").out
