"""What the tasks with texts as rows want where nothing else was said."""

from __future__ import annotations

from typing import Any

import pytest

from legato.registry import MODELS, TASKS
from legato.tasks.defaults import (
    scratch_model,
    scratch_tokenizer,
    scratch_training,
    tagger_model,
    tagger_training,
    tuning,
)

ROWS = ("classification", "tagging", "qa", "embedding")


def test_a_trained_model_learns_in_small_steps_and_a_part_of_it_in_larger_ones() -> None:
    assert tuning({}, None)["lr"] == tuning({}, "full")["lr"] == tuning({}, {"name": "full"})["lr"] == 5e-5
    assert tuning({}, {"name": "lora"})["lr"] == tuning({}, "bitfit")["lr"] == 1e-3


@pytest.mark.parametrize("adapt", ["lora", {"name": "lora"}, {"name": "lora", "rank": 4}])
@pytest.mark.parametrize("task", ROWS)
def test_adapt_reads_the_same_in_every_task(task: str, adapt: Any) -> None:
    adjusted = TASKS.get(task).adjust({"from": "a folder", "adapt": adapt})
    assert adjusted["train"]["lr"] == 1e-3
    assert adjusted["train"]["beta2"] == 0.999


@pytest.mark.parametrize("task", ROWS)
@pytest.mark.parametrize("start", [{}, {"from": "a folder"}])
def test_what_is_said_wins_over_defaults(task: str, start: dict[str, Any]) -> None:
    said = {"steps": 5, "batch_tokens": 9, "lr": 0.5, "schedule": "constant"}
    train = TASKS.get(task).adjust({**start, "train": said})["train"]
    assert said.items() <= train.items()
    assert not {"epochs", "batch_rows", "warmup"} & train.keys()


@pytest.mark.parametrize("train", [tuning({"optimizer": "sgd"}, None), tagger_training("lstm", {"optimizer": "sgd"})])
def test_another_optimiser_keeps_its_own_rate_and_the_task_its_epochs(train: dict[str, Any]) -> None:
    assert train.keys() == {"batch_rows", "epochs"}


@pytest.mark.parametrize("name", [name for name in MODELS.names() if not MODELS.get(name).is_encoder_decoder])
def test_defaults_are_settings_that_the_model_has(name: str) -> None:
    config = MODELS.get(name).Config
    assert config(**{"name": name, **tagger_model(name, words=True)}).name == name
    made = config(**{"name": name, **scratch_model(name, 64)})
    assert getattr(made, "length", 64) == 64
    assert not getattr(made, "masked_words", False)
    assert scratch_training(name, {})["lr"] == (1e-3 if name in ("lstm", "gru", "elman", "window") else 3e-4)


def test_letters_and_vectors_are_of_whole_words() -> None:
    words = {"name": "word", "min_count": 2}
    assert scratch_tokenizer({"name": "elmo"}) == scratch_tokenizer({"name": "lstm", "characters": 50}) == words
    assert scratch_tokenizer({"name": "lstm"}, words=True) == words
    assert scratch_tokenizer({"name": "lstm"})["name"] == "wordpiece"
    assert scratch_tokenizer({"name": "gpt2"})["name"] == "bpe"
    assert scratch_tokenizer({"name": "bert"}) == {"name": "wordpiece", "masked": True}


def test_vectors_need_no_head_of_a_trained_encoder() -> None:
    trained = {"from": "a folder", "model": {"name": "bert", "masked_words": True, "next_sentence": True}}
    assert TASKS.get("embedding").adjust(trained)["model"] == {
        "name": "bert",
        "masked_words": False,
        "next_sentence": False,
    }
