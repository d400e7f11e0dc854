"""`legato generate` with published models: prompts, contexts, chats and hub names, as somebody types them."""

from __future__ import annotations

import io
import json
import sys
from pathlib import Path
from typing import Any

import pytest

import legato
from refusals import is_one_line
from tiny_published import CHATML, gpt2_folder

LENGTH = 64


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return gpt2_folder(tmp_path_factory.mktemp("published") / "m", template=CHATML, length=LENGTH)


@pytest.fixture(scope="module")
def model(folder: Path) -> Any:
    return legato.load(folder, "cpu")


def typed(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO(text))


def test_a_published_folder_goes_on_with_a_text(folder: Path, model: Any, command: Any) -> None:
    answer = command("generate", folder, "the cat", "--max-tokens", 9)
    assert answer.out == f"the cat{model.generate('the cat', max_tokens=9)}\n"
    assert (answer.code, answer.err) == (0, "")


def test_without_a_prompt_a_new_text_begins(folder: Path, model: Any, command: Any) -> None:
    assert command("generate", folder, "--max-tokens", 9).out == model.generate("", max_tokens=9) + "\n"


def test_a_prompt_beyond_the_context_is_one_line(folder: Path, command: Any) -> None:
    is_one_line(command("generate", folder, "xyz " * 90), "tokens, but the model reads 64 at most", "--slide")


def test_a_full_context_is_noted(folder: Path, command: Any) -> None:
    answer = command("generate", folder, "the", "--max-tokens", 99, "--min-tokens", 99)
    assert answer.code == 0
    assert "the model's context of 64 tokens is full; --slide goes on" in answer.err
    slid = command("generate", folder, "the", "--max-tokens", 99, "--min-tokens", 99, "--slide")
    assert slid.err == ""
    assert len(slid.out) > len(answer.out)


def test_a_message_is_answered(folder: Path, model: Any, command: Any) -> None:
    answer = command("generate", folder, "hello", "--chat", "--max-tokens", 9)
    assert answer.out == model.chat("hello", max_tokens=9) + "\n"


def test_a_system_message_stands_first(folder: Path, model: Any, command: Any) -> None:
    answer = command("generate", folder, "hello", "--chat", "--system", "the", "--max-tokens", 9, "--json")
    dialogue = [{"role": "system", "content": "the"}, {"role": "user", "content": "hello"}]
    assert json.loads(answer.out)["results"][0]["text"] == model.chat(dialogue, max_tokens=9)


def test_each_line_is_a_turn_and_the_dialogue_is_kept(
    folder: Path, model: Any, command: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    typed(monkeypatch, "hi\n\n  \na cat")
    answer = command("generate", folder, "--chat", "--max-tokens", 3)
    first = model.chat("hi", max_tokens=3)
    dialogue = [("user", "hi"), ("assistant", first), ("user", "a cat")]
    second = model.chat([{"role": role, "content": text} for role, text in dialogue], max_tokens=3)
    assert answer.out == f"{first}\n{second}\n"
    assert (answer.code, answer.err) == (0, "")


def test_a_dialogue_longer_than_the_context_forgets_its_beginning(
    folder: Path, model: Any, command: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    typed(monkeypatch, "hello\n" * 9)
    answer = command("generate", folder, "--chat", "--max-tokens", 3)
    assert answer.code == 0
    assert answer.err.count("the first messages are forgotten") == 1
    assert answer.out.startswith(model.chat("hello", max_tokens=3) + "\n")


def test_lines_of_a_file_are_dialogues_of_their_own(folder: Path, model: Any, command: Any, tmp_path: Path) -> None:
    (tmp_path / "asked.txt").write_text("hello\nthe cat\n")
    answer = command("generate", folder, "--chat", "--file", tmp_path / "asked.txt", "--max-tokens", 3, "--json")
    found = [json.loads(line)["results"][0]["text"] for line in answer.out.splitlines()]
    assert found == [model.chat("hello", max_tokens=3), model.chat("the cat", max_tokens=3)]


@pytest.mark.parametrize("prompt", [["hello"], []])
def test_a_folder_without_a_template_is_one_line(
    prompt: list[str], command: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    typed(monkeypatch, "")
    is_one_line(command("generate", gpt2_folder(tmp_path / "m"), "--chat", *prompt), "has no chat template")


def test_a_system_message_needs_a_chat(folder: Path, command: Any) -> None:
    is_one_line(command("generate", folder, "hello", "--system", "be brief"), "it needs --chat")


def test_a_dialogue_is_no_table(folder: Path, command: Any) -> None:
    is_one_line(command("generate", folder, "--chat", "--json"), "a dialogue is written as it comes")


def test_a_closed_input_is_no_dialogue(folder: Path, command: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", None)
    is_one_line(command("generate", folder, "--chat"), "standard input is closed")


@pytest.mark.parametrize("verb", [["generate"], ["predict"], ["eval"], ["export", "--to", "hf"]])
def test_a_name_that_is_neither_a_folder_nor_on_the_hub_is_one_line(
    verb: list[str], command: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    is_one_line(command(verb[0], "org/none", *verb[1:]), "there is no folder org/none", "HF_HUB_OFFLINE is set")


def test_a_prompt_of_a_file_that_does_not_fit_is_named(folder: Path, command: Any, tmp_path: Path) -> None:
    (tmp_path / "p.txt").write_text("the cat\n" + "xyz " * 90 + "\n")
    is_one_line(command("generate", folder, "--file", tmp_path / "p.txt"), "p.txt, line 2: the prompt has")


def test_an_empty_message_is_one_line(folder: Path, command: Any) -> None:
    is_one_line(command("generate", folder, " ", "--chat"), "an empty message has no answer")


def test_a_template_that_cannot_be_read_is_told_once(command: Any, tmp_path: Path) -> None:
    broken = gpt2_folder(tmp_path / "m", template="{% if x %}", length=LENGTH)
    answer = command("generate", broken, "hi", "--chat")
    is_one_line(answer, "is not a template that can be read")
    assert "FolderError" not in answer.err


def test_code_of_its_own_is_refused_whatever_the_model_calls_itself(command: Any, tmp_path: Path) -> None:
    fancy = gpt2_folder(tmp_path / "m", length=LENGTH)
    config = json.loads((fancy / "config.json").read_text())
    (fancy / "config.json").write_text(json.dumps({**config, "auto_map": {"AutoModelForCausalLM": "fancy.Fancy"}}))
    is_one_line(command("generate", fancy, "hi"), "comes with code of its own (auto_map), which is never run")


def test_a_size_beyond_all_memory_is_one_line(command: Any, tmp_path: Path) -> None:
    huge = gpt2_folder(tmp_path / "m", length=LENGTH)
    config = json.loads((huge / "config.json").read_text())
    (huge / "config.json").write_text(json.dumps({**config, "n_embd": 4 * 10**9, "n_head": 1}))
    is_one_line(command("generate", huge, "hi"), "'n_embd' should be less than or equal to 16777216")


@pytest.mark.parametrize("text", [3, None, [3]])
def test_what_is_no_text_is_told(model: Any, text: Any) -> None:
    with pytest.raises(legato.LegatoError, match=r"no text|a text or a list"):
        model.predict(text)
