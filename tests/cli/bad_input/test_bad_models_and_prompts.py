"""Models and prompts that cannot be read, and searches that make no sense: one line each."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from refusals import is_one_line


@pytest.mark.parametrize("verb", ["eval", "generate"])
@pytest.mark.parametrize("name", ["model.safetensors", "tokenizer.json", "config.json"])
def test_a_model_folder_that_lacks_a_file_is_refused(name: str, verb: str, command: Any, finished: Path) -> None:
    (finished / "best" / name).unlink()
    words = [f"data.test={finished}"] if verb == "eval" else []
    is_one_line(command(verb, finished / "best", *words), str(finished / "best"), name)


@pytest.mark.parametrize("name", ["model.safetensors", "tokenizer.json", "config.json"])
def test_a_model_folder_with_a_damaged_file_is_refused(name: str, command: Any, finished: Path) -> None:
    file = finished / "best" / name
    file.write_bytes(file.read_bytes()[:50])
    is_one_line(command("generate", finished, "the"), name)


def test_weights_of_another_shape_are_refused(command: Any, finished: Path) -> None:
    config = finished / "best" / "config.json"
    config.write_text(config.read_text().replace('"width": 16', '"width": 24'))
    is_one_line(command("generate", finished, "the"), "has shape")


@pytest.mark.parametrize("verb", ["eval", "generate"])
def test_a_model_that_is_not_there_is_refused(verb: str, command: Any, tmp_path: Path) -> None:
    is_one_line(command(verb, tmp_path / "none"), f"there is no folder {tmp_path}/none")


def test_a_run_without_a_model_yet_is_said_to_be_one(command: Any, stopped: Path) -> None:
    shutil.rmtree(stopped / "best")
    shutil.rmtree(stopped / "last")
    is_one_line(command("generate", stopped), f"{stopped} is a run that has not saved a model yet")


@pytest.mark.parametrize(
    ("words", "parts"),
    [
        ([], ("'data.test' is needed",)),
        (["data.test=no.txt"], ("there is no file no.txt",)),
        (["data.tset=x"], ("'data.tset'", "'test'")),
        (["tset=x"], ("'data.tset'", "'test'")),
        (["train.steps=5"], ("'train'",)),
        (["data.test=toy:recal"], ("toy:recal",)),
        (["device=cuda9x"], ("device=cuda9x",)),
        (["fast"], ("'fast' is not a setting",)),
    ],
)
def test_an_evaluation_that_makes_no_sense_is_refused(
    words: list[str], parts: tuple[str, ...], command: Any, finished: Path
) -> None:
    is_one_line(command("eval", finished, *words), *parts)


@pytest.mark.parametrize(
    ("words", "parts"),
    [
        (["--search", "best"], ("search=best should be 'greedy'",)),
        (["--search", "beam", "--beams", "2", "--nbest", "3"], ("nbest=3", "2 beams")),
        (["--search", "beam", "--beams", "0"], ("beams=0",)),
        (["--nbest", "2"], ("nbest=2", "greedy")),
        (["--max-tokens", "0"], ("max_tokens=0",)),
        (["--top-p", "0.9"], ("top_p=0.9", "--search sample")),
        (["--search", "sample", "--temperature", "0"], ("temperature=0",)),
        (["--beams", "two"], ("'--beams'",)),
        (["--stop", ""], ("stop",)),
        (["--device", "cuda9x"], ("device=cuda9x",)),
    ],
)
def test_a_search_that_makes_no_sense_is_refused(
    words: list[str], parts: tuple[str, ...], command: Any, finished: Path
) -> None:
    is_one_line(command("generate", finished, "the ", *words), *parts)


def test_a_prompt_file_that_is_missing_is_named(command: Any, finished: Path, tmp_path: Path) -> None:
    is_one_line(command("generate", finished, "--file", tmp_path / "no.txt"), f"there is no file {tmp_path}/no.txt")


def test_a_prompt_file_that_is_no_text_is_named(command: Any, finished: Path, tmp_path: Path) -> None:
    (tmp_path / "bad.txt").write_bytes(b"\xff\xfe\x00")
    is_one_line(command("generate", finished, "--file", tmp_path / "bad.txt"), f"{tmp_path}/bad.txt cannot be read")


def test_an_empty_prompt_file_is_named(command: Any, finished: Path, tmp_path: Path) -> None:
    (tmp_path / "empty.txt").write_text("")
    is_one_line(command("generate", finished, "--file", tmp_path / "empty.txt"), f"{tmp_path}/empty.txt is empty")


def test_a_prompt_and_a_prompt_file_together_are_refused(command: Any, finished: Path, tmp_path: Path) -> None:
    is_one_line(command("generate", finished, "the", "--file", tmp_path / "x.txt"), "not both")
