"""`legato generate` from end to end: seeds, searches, prompts and what ends a text."""

from __future__ import annotations

import io
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import legato


def test_the_same_seed_writes_the_same_text(command: Any, home: Path) -> None:
    words = ("generate", home / "run", "the ", "--search", "sample", "--top-p", "0.9", "--max-tokens", "40")
    first, second, other = (command(*words, "--seed", seed).out for seed in (1, 1, 2))
    assert first.startswith("the ")
    assert first == second != other


def test_a_prompt_is_continued_alone_as_it_is_among_others(command: Any, home: Path, tmp_path: Path) -> None:
    words = ("--search", "sample", "--max-tokens", "30", "--seed", "4")
    prompts = ["the cat", "a ", "one more", "the cat", "rain"]
    (tmp_path / "prompts.txt").write_text("\n".join(prompts) + "\n")
    together = command("generate", home / "run", "--file", tmp_path / "prompts.txt", *words).out
    assert together == "".join(command("generate", home / "run", prompt, *words).out for prompt in prompts)


def test_greedy_search_always_writes_the_same(command: Any, home: Path) -> None:
    words = ("generate", home / "run", "the ", "--max-tokens", "20")
    assert command(*words).out == command(*words, "--seed", 5).out


def test_a_beam_shows_its_best_texts_with_falling_scores(command: Any, home: Path) -> None:
    words = ("--search", "beam", "--beams", "5", "--nbest", "3", "--max-tokens", "12", "--scores")
    lines = command("generate", home / "run", "the ", *words).out.rstrip("\n").split("\n")
    scores = [float(line.split()[0]) for line in lines]
    assert len(scores) == 3
    assert scores == sorted(scores, reverse=True)


def test_generating_with_json_gives_texts_tokens_and_scores(command: Any, home: Path) -> None:
    words = ("--search", "beam", "--beams", "5", "--nbest", "3", "--max-tokens", "12", "--json")
    found = json.loads(command("generate", home / "run", "the ", *words).out)
    assert found["prompt"] == "the "
    assert len(found["results"]) == 3
    assert found["results"][0].keys() == {"text", "tokens", "score", "logprob", "finished"}


def test_each_line_of_a_prompt_file_is_continued(command: Any, home: Path, tmp_path: Path) -> None:
    (tmp_path / "prompts.txt").write_text("the cat\na\n")
    lines = command(
        "generate", home / "run", "--file", tmp_path / "prompts.txt", "--max-tokens", "3", "--stop", "\\n"
    ).out.splitlines()
    assert [line[: len(prompt)] for line, prompt in zip(lines, ("the cat", "a"), strict=True)] == ["the cat", "a"]


def test_a_stop_string_ends_the_text_before_it(command: Any, home: Path) -> None:
    words = ("generate", home / "run", "the ", "--search", "sample", "--max-tokens", "200", "--stop", "a")
    assert "a" not in command(*words).out


def test_streamed_text_is_the_text_that_python_gets(command: Any, home: Path) -> None:
    options: dict[str, Any] = {"search": "sample", "max_tokens": 30, "seed": 3}
    streamed = command(
        "generate", home / "run", "the ", "--search", "sample", "--max-tokens", "30", "--seed", "3"
    ).out
    assert streamed == "the " + legato.load(home / "run").generate("the ", **options) + "\n"


def test_a_prompt_that_the_model_cannot_read_is_said_so(command: Any, home: Path) -> None:
    answer = command("generate", home / "run", "☃", "--max-tokens", "2")
    assert answer.code == 0
    assert "does not know all of '☃'" in answer.err


@pytest.mark.parametrize("words", [(), ("-",), ("--file", "-")])
def test_prompts_come_from_standard_input(
    words: tuple[str, ...], command: Any, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO("the cat\n"))
    answer = command("generate", home / "run", *words, "--max-tokens", "4")
    assert answer.out == command("generate", home / "run", "the cat", "--max-tokens", "4").out
    monkeypatch.setattr(sys, "stdin", io.StringIO("the cat\na\n"))
    found = command("generate", home / "run", *words, "--max-tokens", "4", "--json").out.splitlines()
    assert [json.loads(line)["prompt"] for line in found] == ["the cat", "a"]


def test_without_a_prompt_and_with_nothing_to_read_a_new_text_begins(
    command: Any, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = command("generate", home / "run", "", "--max-tokens", "4").out
    for nothing in (io.StringIO(""), None):
        monkeypatch.setattr(sys, "stdin", nothing)
        assert command("generate", home / "run", "--max-tokens", "4").out == expected


@pytest.mark.slow
def test_a_pipe_is_read_in_a_shell(home: Path) -> None:
    script = f'echo "the cat" | "{sys.executable}" -m legato generate "{home}/run" --max-tokens 2 --json'
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, timeout=120)
    assert json.loads(done.stdout)["prompt"] == "the cat", done.stderr


def test_a_dialogue_is_about_one_picture(command: Any, home: Path) -> None:
    answer = command("generate", home / "run", "The ", "--chat", "--image", "a.jpg", "--image", "b.jpg")
    told = "legato: a dialogue is about one picture, and there are 2; give --image once\n"
    assert (answer.code, answer.err) == (2, told)


@pytest.mark.parametrize("chat", [(), ("--chat",)])
def test_a_picture_needs_a_model_that_reads_it(command: Any, home: Path, chat: tuple[str, ...]) -> None:
    answer = command("generate", home / "run", "The ", "--image", "photo.jpg", *chat)
    assert (answer.code, answer.out) == (2, "")
    assert answer.err == f"legato: {home / 'run' / 'best'} reads no pictures; leave out --image\n"
