"""Questions about pictures on the command line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from answers import Command
from refusals import ends_in_one_line, is_one_line
from tiny_visual_questions import picture, train_to_see, write_questions


@pytest.fixture(scope="module")
def seeing(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return train_to_see(tmp_path_factory.mktemp("seeing"))


def test_a_file_that_is_no_picture_is_named(tmp_path: Path, command: Command) -> None:
    table = write_questions(tmp_path, count=16)
    (tmp_path / "images" / "3.png").write_text("no picture")
    words = [f"{key}={value}" for key, value in {"data.train": table, "train.steps": 1, "device": "cpu"}.items()]
    ends_in_one_line(
        command("train", "vqa", *words, "model.encoder=vit", f"out={tmp_path / 'run'}"), "3.png is no picture"
    )


def test_a_command_line_has_pictures_and_questions_in_turn(seeing: Path, command: Command) -> None:
    red, blue = (str(seeing / "images" / f"{number}.png") for number in (100, 102))
    run = str(seeing / "run")
    found = command("predict", run, red, "What colour is it?", blue, "What colour is it?")
    assert found.code == 0
    assert [line.split("\t")[0] for line in found.out.splitlines()] == ["red", "blue"]
    single = json.loads(command("predict", run, red, "What colour is it?", "--json").out)
    assert single["input"] == f"{red}\tWhat colour is it?"
    assert single["answers"][0]["text"] == "red"


def test_a_table_of_questions_is_answered(seeing: Path, tmp_path: Path, command: Command) -> None:
    picture("blue", 3).save(tmp_path / "b.png")
    (tmp_path / "q.csv").write_text("image,question\nb.png,what colour is it?\n")
    found = command("predict", str(seeing / "run"), "--file", str(tmp_path / "q.csv"))
    assert (found.code, found.out.split("\t")[0]) == (0, "blue")


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["What is it?"], "the question 'What is it?' has no picture"),
        (["a.png"], "the picture a.png has no question"),
        (["a.png", "what?", "b.png"], "the picture b.png has no question"),
        (["a.png", "b.png", "what?"], "the picture a.png has no question"),
        (["a.png", "what?", "where?"], "the question 'where?' has no picture"),
        (["gone.png", "what?"], "there is no picture gone.png"),
        (["a.png", " "], "there is no question about a.png"),
    ],
)
def test_what_is_missing_is_named(words: list[str], told: str, seeing: Path, command: Command) -> None:
    is_one_line_or_empty(command("predict", str(seeing / "run"), *words), told)


def is_one_line_or_empty(answer: Any, told: str) -> None:
    """A single question that cannot be answered has an empty line of its own."""
    answer.out = answer.out.strip()
    is_one_line(answer, told)
