"""What the tasks with texts as rows want where nothing else was said."""

from __future__ import annotations

from typing import Any

import pytest

from legato.data.processors import TEXT
from legato.errors import ConfigError
from legato.registry import MODELS, TASKS
from legato.runs.config import NAMES, check, list_recipes, resolved, settings_for, with_defaults
from legato.tasks.defaults import Given, row_training, scratch_model, scratch_tokenizer, tagger_model, tagger_training

ROWS = ("classification", "tagging", "qa", "embedding")


def given(model: str = "lstm", /, *, adapt: str = "full", trained: bool = False, **sections: Any) -> Given:
    named = {"name": model, **sections.pop("model", {})}
    settings = {"data": {}, "tokenizer": {}, "train": {}, "head": {}, **sections}
    return Given(**settings, model=named, adapt=adapt, trained=trained)


def test_a_trained_model_learns_in_small_steps_and_a_part_of_it_in_larger_ones() -> None:
    assert row_training(given(trained=True))["lr"] == 5e-5
    assert row_training(given(trained=True, adapt="lora"))["lr"] == 1e-3
    assert row_training(given(trained=True, adapt="bitfit"))["lr"] == 1e-3


TUNED = [
    ("classification", {"name": "bert", "width": 384}, "full", {"lr": 1e-4, "epochs": 3}),
    ("classification", {"name": "bert", "width": 768}, "full", {"lr": 5e-5, "epochs": 3}),
    ("classification", {"name": "bert", "width": 384}, "head", {"lr": 1e-3, "epochs": 3}),
    ("image-classification", {"name": "vit"}, "full", {"lr": 1e-4, "head_lr": 5e-3, "epochs": 10}),
    ("image-classification", {"name": "resnet"}, "full", {"lr": 3e-4, "head_lr": 5e-3, "frozen": ("norms",)}),
    ("image-classification", {"name": "resnet"}, "head", {"lr": 5e-3, "epochs": 10}),
    ("audio-classification", {"name": "conformer"}, "full", {"lr": 1e-4, "epochs": 5}),
]
MIN_STEPS = {"classification": 500, "image-classification": 300, "audio-classification": 300}


@pytest.mark.parametrize(("task", "model", "adapt", "usual"), TUNED)
def test_each_kind_of_input_is_tuned_in_its_own_way(task: str, model: Any, adapt: str, usual: dict[str, Any]) -> None:
    start = {"from": "a folder", "model": model, "adapt": {"name": adapt}}
    train = with_defaults(TASKS.get(task), start)["train"]
    assert {**usual, "min_steps": MIN_STEPS[task]}.items() <= train.items()
    assert {"head_lr", "frozen"} & train.keys() == {"head_lr", "frozen"} & usual.keys()


def test_small_data_are_read_until_there_were_steps_enough_unless_somebody_says_how_long() -> None:
    for task, steps in MIN_STEPS.items():
        for said in ({"epochs": 3}, {"steps": 30}, {"epochs": None}):  # the last as a run's own file has it
            assert "min_steps" not in with_defaults(TASKS.get(task), {"from": "a folder", "train": said})["train"]
        assert with_defaults(TASKS.get(task), {"from": "a folder"})["train"]["min_steps"] == steps


def test_a_rate_that_is_set_is_the_heads_too() -> None:
    start = {"from": "a folder", "model": {"name": "resnet"}, "train": {"lr": 1e-5}}
    assert "head_lr" not in with_defaults(TASKS.get("image-classification"), start)["train"]


@pytest.mark.parametrize("name", list_recipes())
def test_a_recipe_says_itself_how_fast_and_how_long_it_trains(name: str) -> None:
    settings = settings_for(name, {})
    own, train = settings["train"], with_defaults(TASKS.get(settings["task"]), resolved(settings, NAMES))["train"]
    assert not (train.keys() - own.keys()) & {"min_steps", "head_lr", "frozen"}
    assert "lr" in own or not isinstance(settings.get("from"), str)


@pytest.mark.parametrize("adapt", [{"name": "lora"}, {"name": "lora", "rank": 4}])
@pytest.mark.parametrize("task", ROWS)
def test_adapt_reads_the_same_in_every_task(task: str, adapt: Any) -> None:
    settings = with_defaults(TASKS.get(task), {"from": "a folder", "adapt": adapt})
    assert settings["train"]["lr"] == 1e-3
    assert settings["train"]["beta2"] == 0.999


@pytest.mark.parametrize("task", ROWS)
@pytest.mark.parametrize("start", [{}, {"from": "a folder"}])
def test_what_is_said_wins_over_defaults(task: str, start: dict[str, Any]) -> None:
    said = {"steps": 5, "batch_tokens": 9, "lr": 0.5, "schedule": "constant"}
    train = with_defaults(TASKS.get(task), {**start, "train": said})["train"]
    assert said.items() <= train.items()
    assert not {"epochs", "batch_rows", "warmup"} & train.keys()


@pytest.mark.parametrize("trained", [False, True])
def test_another_optimiser_keeps_its_own_rate_and_the_task_its_epochs(trained: bool) -> None:
    assert tagger_training(given(train={"optimizer": "sgd"}, trained=trained)).keys() == {"batch_rows", "epochs"}


TAGGERS = [name for name in MODELS.names() if MODELS.get(name).processors == (TEXT,) and name != "vqa"]


@pytest.mark.parametrize("name", [name for name in TAGGERS if not MODELS.get(name).is_encoder_decoder])
def test_defaults_are_settings_that_the_model_has(name: str) -> None:
    config = MODELS.get(name).Config
    assert config(**{"name": name, **tagger_model(given(name), words=True)}).name == name
    made = config(**{"name": name, **scratch_model(given(name), 64)})
    assert getattr(made, "length", 64) == 64
    assert not getattr(made, "masked_words", False)
    assert row_training(given(name))["lr"] == (1e-3 if name in ("lstm", "gru", "elman", "window") else 3e-4)


def test_letters_and_vectors_are_of_whole_words() -> None:
    words = {"name": "word", "min_count": 2}
    assert scratch_tokenizer(given("elmo")) == scratch_tokenizer(given(model={"characters": 50})) == words
    assert scratch_tokenizer(given(), words=True) == words
    assert scratch_tokenizer(given())["name"] == "wordpiece"
    assert scratch_tokenizer(given("gpt2"))["name"] == "bpe"
    assert scratch_tokenizer(given("bert")) == {"name": "wordpiece", "masked": True}
    assert scratch_tokenizer(given("roberta")) == {"name": "bpe", "masked": True, "special_tokens": "roberta"}


def test_vectors_need_no_head_of_a_trained_encoder() -> None:
    trained = {"from": "a folder", "model": {"name": "bert", "masked_words": True, "next_sentence": True}}
    model = with_defaults(TASKS.get("embedding"), trained)["model"]
    assert (model["masked_words"], model["next_sentence"]) == (False, False)


@pytest.mark.parametrize("task", TASKS.names())
@pytest.mark.parametrize("wrong", [{"window": "abc"}, {"window": [1]}, {"train": 3}, {"vectors": {"a": 1}}])
def test_defaults_come_before_the_check_and_trip_over_nothing(task: str, wrong: dict[str, Any]) -> None:
    assert with_defaults(TASKS.get(task), {"data": wrong, "train": {"steps": "many", "lr": []}})["data"]


@pytest.mark.parametrize("length", ["²", "9" * 5000, "1e3", "-3"])
def test_a_length_that_is_none_is_left_to_the_check(length: str) -> None:
    for task, model in (("lm", "gpt2"), ("mlm", "bert")):
        with pytest.raises(ConfigError, match=r"model\.length"):
            check({"task": task, "model": {"name": model, "length": length}})
