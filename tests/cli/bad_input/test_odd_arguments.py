"""Arguments of every verb that are out of range, no text, or name no file: one line each."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from refusals import is_one_line

HUGE = str(10**25)


@pytest.mark.parametrize(
    ("words", "parts"),
    [
        (["--max-tokens", HUGE], ("max_tokens=10000000000000000000000000 should be less than or equal to",)),
        (["--max-tokens", "9" * 5000], ("--max-tokens",)),
        (["--max-tokens", "-1"], ("max_tokens=-1 should be greater than",)),
        (["--max-tokens", "1.5"], ("--max-tokens",)),
        (["--max-tokens", "²"], ("--max-tokens",)),
        (["--min-tokens", HUGE], ("min_tokens",)),
        (["--search", "beam", "--beams", HUGE], ("beams=", "should be less than or equal to")),
        (["--search", "beam", "--beams", "1000000"], ("beams=1000000 should be less than or equal to",)),
        (["--search", "sample", "--nbest", "2147483647"], ("nbest=2147483647 should be less than or equal to",)),
        (["--search", "sample", "--seed", str(2**64)], ("seed=18446744073709551616 should be less than",)),
        (["--search", "sample", "--seed", "-1"], ("seed=-1 should be greater than",)),
        (["--search", "sample", "--temperature", "nan"], ("temperature=nan",)),
        (["--search", "sample", "--temperature", "inf"], ("temperature=inf",)),
        (["--search", "sample", "--temperature", "1e300"], ("temperature=1e+300",)),
        (["--search", "sample", "--top-k", HUGE], ("top_k=", "should be less than or equal to")),
        (["--search", "sample", "--top-p", "nan"], ("top_p=nan",)),
        (["--repetition-penalty", "1e200"], ("repetition_penalty=",)),
        (["--stop", "a\udcff"], ("stop", "no UTF-8")),
        (["--search", "x" * 100_000], ("search=xxx", "…")),
        (["--device", "cuda:99999999999999999999"], ("device=",)),
        (["--device", "x" * 100_000], ("device=xxx", "…")),
        (["--file", "a" * 300], ("the name is too long",)),
        (["--file", "~nosuchuser/a"], ("home folder",)),
        (["--file", "."], (". is a folder; name a file in it",)),
        (["--file", "pipe"], ("pipe is a pipe",)),
    ],
    ids=lambda part: " ".join(part)[:40].encode("ascii", "replace").decode(),
)
def test_an_option_of_generate_that_cannot_be_is_one_line(
    words: list[str],
    parts: tuple[str, ...],
    command: Any,
    home: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    import os

    monkeypatch.chdir(tmp_path)
    os.mkfifo("pipe")
    answer = command("generate", home / "finished", *words)
    is_one_line(answer, *parts)
    assert len(answer.err) < 500


@pytest.mark.parametrize("verb", ["predict", "embed"])
@pytest.mark.parametrize("name", ["a" * 300, "~nosuchuser/a", ".", "pipe", "/a" * 3000, "none.txt"])
def test_a_file_of_texts_that_is_none_is_one_line(
    verb: str, name: str, command: Any, home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import os

    monkeypatch.chdir(tmp_path)
    os.mkfifo("pipe")
    is_one_line(command(verb, home / "finished", "--file", name))


@pytest.mark.parametrize("verb", ["generate", "predict", "embed", "eval", "export"])
@pytest.mark.parametrize("place", ["a" * 300, "~nosuchuser/a", "", "x\udcff", "/a" * 3000, "a/b/c/d"])
def test_a_model_that_cannot_be_is_one_line(
    verb: str, place: str, command: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.chdir(tmp_path)
    more = ["--to", "hf"] if verb == "export" else ["data.test=a.txt"] if verb == "eval" else ["text"]
    is_one_line(command(verb, place, *more))


@pytest.mark.parametrize(
    "word",
    [
        "data.self=1",
        "data.cls=1",
        "data..test=1",
        "data=1",
        "data.test=" + "a" * 300,
        "data.test=~nosuchuser/x",
        "data.window=" + HUGE,
        "data.encoding=" + "x" * 5000,
        "data.column=" + "x" * 5000,
        "device={}",
        "=1",
        "x" * 100_000 + "=1",
    ],
)
def test_a_setting_of_eval_that_cannot_be_is_one_line(word: str, command: Any, home: Path) -> None:
    answer = command("eval", home / "finished", f"data.test={home}/a.txt", word)
    is_one_line(answer)
    assert len(answer.err) < 500


def test_bytes_that_are_no_utf8_are_read_as_a_file_would_be(command: Any, home: Path) -> None:
    for text in ("caf\udce9", "half \ud83d"):
        answer = command("predict", home / "finished", text)
        assert answer.code == 2
        assert "fault" not in answer.err


@pytest.mark.parametrize("batch", ["0", "-1", "nan", HUGE])
def test_a_batch_size_that_cannot_be_is_one_line(batch: str, command: Any, home: Path) -> None:
    answer = command("embed", home / "finished", "a dog", "--batch-size", batch)
    if batch == HUGE:  # as many as there are
        assert answer.code == 0
    else:
        is_one_line(answer)


@pytest.mark.parametrize("layers", ["sum-last-0", "sum-last-" + "9" * 5000, "x" * 100_000, "sum-last-²"])
def test_layers_that_are_not_there_are_one_line(layers: str, command: Any, home: Path) -> None:
    answer = command("embed", home / "finished", "a dog", "--layers", layers)
    is_one_line(answer)
    assert len(answer.err) < 500


@pytest.mark.parametrize(
    "words",
    [
        ["--labels", ""],
        ["--labels", ",,"],
        ["--labels", "a,a"],
        ["--labels", "a,b\udcff"],
        ["--labels", "a,b", "--shots", "a" * 300],
        ["--labels", "a,b", "--shots", "~nosuchuser/x"],
        ["--labels", "a,b", "--shots", "."],
        ["--shots", "shots.tsv", "--columns", "9" * 5000 + ",1"],
        ["--shots", "shots.tsv", "--columns", "0,1"],
        ["--shots", "shots.tsv", "--columns", "1"],
        ["--shots", "shots.tsv", "--columns", ""],
        ["--labels", "a,b", "--template", "{text}"],
        ["--labels", "a,b", "--template", "x" * 100_000],
        ["--labels", "a,b", "--nbest", HUGE],
    ],
    ids=lambda words: " ".join(words)[:40].encode("ascii", "replace").decode(),
)
def test_asking_for_labels_that_cannot_be_is_one_line(
    words: list[str], command: Any, home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("shots.tsv").write_text("a text of words\tgood\nanother text of words\tbad\n")
    answer = command("predict", home / "finished", "the cat", "--task", "classification", *words)
    is_one_line(answer)
    assert len(answer.err) < 500


def test_resuming_what_cannot_be_is_one_line(command: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for place in ("a" * 300, "~nosuchuser/x", "x" * 100_000, "[1,2]", "{a: 1}"):
        answer = command("train", f"resume={place}")
        is_one_line(answer)
        assert len(answer.err) < 500


def test_a_model_that_is_larger_than_the_machine_is_one_line(train: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from refusals import ends_in_one_line

    monkeypatch.setattr("legato.memory.available", lambda: 1 << 30)
    ends_in_one_line(train("model.width=16384"), "parameters, takes", "GB of memory", "make it smaller: model.layers")
