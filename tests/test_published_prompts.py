"""Published models that write: how prompts begin, where texts end, and what a full context does."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import legato
from legato.decoding import SearchOptions
from legato.errors import LegatoError
from tiny_published import gpt2_folder, write

LENGTH = 64


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return gpt2_folder(tmp_path_factory.mktemp("published") / "m", length=LENGTH)


@pytest.fixture(scope="module")
def model(folder: Path) -> Any:
    return legato.load(folder, "cpu")


def tokens(model: Any, prompt: Any, **options: Any) -> list[int]:
    found: list[int] = model.hypotheses([prompt], SearchOptions(**options))[0][0].tokens
    return found


@pytest.mark.slow
def test_a_published_model_writes_what_it_writes_there(folder: Path, model: Any) -> None:
    transformers = pytest.importorskip("transformers")
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    theirs = transformers.AutoModelForCausalLM.from_pretrained(folder).eval()
    for prompt in ("the cat", "hello <|im_end|> world", " a  b\n"):
        asked = tokenizer(prompt, return_tensors="pt")
        found = theirs.generate(**asked, max_new_tokens=30, do_sample=False, pad_token_id=0)[0].tolist()
        expected = found[asked["input_ids"].shape[1] :]
        assert tokens(model, prompt, max_tokens=30) == [token for token in expected if token != 0]


def test_an_empty_prompt_begins_with_the_token_that_begins(model: Any) -> None:
    assert model.prompt_ids("") == [0]
    assert model.generate("", max_tokens=3) == model.generate([0], max_tokens=3)


def test_a_prompt_may_be_its_tokens(model: Any) -> None:
    ids = model.prompt_ids("the cat")
    text = model.generate("the cat", max_tokens=9)
    assert model.generate(ids, max_tokens=9) == text
    assert model.generate(np.array(ids), max_tokens=9) == text
    assert model.generate(torch.tensor(ids), max_tokens=9) == text
    assert model.generate([ids, "the cat", ids[:1]], max_tokens=9)[:2] == [text, text]
    assert "".join(model.stream(ids, max_tokens=9)) == text


def test_whoever_leaves_a_stream_ends_the_writing(model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    steps, step, gate = [], model.module.step, threading.Event()

    def slow(tokens: Any, state: Any) -> Any:
        steps.append(1)
        gate.wait(10)
        return step(tokens, state)

    monkeypatch.setattr(model.module, "step", slow)
    before = threading.active_count()
    stream = model.stream("the cat", max_tokens=30)
    next(stream)
    stream.close()
    gate.set()
    while threading.active_count() > before:
        time.sleep(0.01)
    assert len(steps) < 5


@pytest.mark.parametrize("prompt", [[5, 10**6], [-1], [[1, 2], [3, 99999]], [[1.5]], np.array([[2**40]])])
def test_a_number_that_is_no_token_is_named(prompt: Any, model: Any) -> None:
    with pytest.raises(LegatoError, match=r"^\S+ is no token of .*: it has 0 to \d+$"):
        model.generate(prompt)


@pytest.mark.parametrize("prompt", [["the", 3], [None], 3, None])
def test_what_is_no_prompt_is_named(prompt: Any, model: Any) -> None:
    with pytest.raises(LegatoError, match="a prompt is a text or a list of tokens, not"):
        model.generate(prompt)


def test_no_tokens_are_no_prompt(model: Any) -> None:
    with pytest.raises(LegatoError, match="prompt 1 is empty"):
        model.generate([[]])


# ── where a text ends ─────────────────────────────────────────────────────────────────────────────


def ends(folder: Path) -> tuple[int, ...]:
    return legato.load(folder, "cpu").loaded.ends


def test_a_text_ends_at_any_token_that_the_folder_names(model: Any, tmp_path: Path) -> None:
    whole = tokens(model, "the dog", max_tokens=40)
    third = whole[2]
    folder = gpt2_folder(tmp_path / "m", length=LENGTH)
    write(folder / "generation_config.json", {"eos_token_id": [0, third, 10**6]})
    assert ends(folder) == (0, third)
    assert tokens(legato.load(folder, "cpu"), "the dog", max_tokens=40) == whole[: whole.index(third)]


def test_the_config_says_it_where_nothing_else_does(tmp_path: Path) -> None:
    assert ends(gpt2_folder(tmp_path / "a", eos_token_id=7)) == (7,)
    assert ends(gpt2_folder(tmp_path / "b", eos_token_id=None)) == (0,)  # the tokenizer's
    assert ends(gpt2_folder(tmp_path / "c", eos_token_id=10**6)) == ()  # which the model cannot write


def test_a_folder_of_ours_begins_and_ends_with_the_end_mark(tmp_path: Path) -> None:
    folder = gpt2_folder(tmp_path / "m", eos_token_id=7, legato={"task": "lm"})
    # Ours fit their vocabulary exactly; this one does.
    model = legato.load(folder, "cpu")
    assert model.loaded.ends == (0,)
    assert model.prompt_ids("the") == [0, *model.tokenizer.encode("the")]


# ── a full context ────────────────────────────────────────────────────────────────────────────────


def test_a_prompt_beyond_the_context_is_refused_with_both_numbers(model: Any) -> None:
    with pytest.raises(LegatoError, match=rf"the prompt has 65 tokens, but the model reads {LENGTH} at most"):
        model.generate([5] * 65)


def test_a_prompt_that_fills_the_context_has_room_for_one_token(model: Any) -> None:
    found = model.hypotheses([[5] * LENGTH, [5] * 60], SearchOptions(max_tokens=50, min_tokens=50))
    assert [len(best[0].tokens) for best in found] == [1, 5]
    assert not any(best[0].finished for best in found)


def test_a_context_that_slides_goes_on(model: Any) -> None:
    long = [5, 6, 7] * 50
    written = tokens(model, long, slide=True, max_tokens=100, min_tokens=100)
    assert len(written) == 100
    assert written[:1] == tokens(model, long[-LENGTH:], max_tokens=1)
    again = [*long, *written[:1]][-LENGTH // 2 :]
    assert written[1:20] == tokens(model, again, max_tokens=19, min_tokens=19)


@pytest.mark.parametrize("options", [{}, {"search": "beam"}, {"search": "sample", "nbest": 3}])
def test_sliding_changes_nothing_within_the_context(options: dict[str, Any], model: Any) -> None:
    prompts = ["the cat", "a", "hello world"]
    assert model.generate(prompts, slide=True, max_tokens=30, **options) == model.generate(
        prompts, max_tokens=30, **options
    )


@pytest.mark.parametrize("options", [{"search": "beam"}, {"search": "sample", "nbest": 3}, {"search": "beam-sample"}])
def test_any_search_slides_in_a_ragged_batch(options: dict[str, Any], model: Any) -> None:
    prompts = [[5] * 200, [6, 7], [8] * 63]
    found = model.hypotheses(prompts, SearchOptions(slide=True, max_tokens=90, min_tokens=90, **options))
    assert all(len(hypothesis.tokens) == 90 for best in found for hypothesis in best)
