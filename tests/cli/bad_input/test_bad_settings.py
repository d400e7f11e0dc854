"""Settings that cannot be are named in one line, with the nearest that can."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from refusals import is_one_line


@pytest.mark.parametrize(
    ("word", "parts"),
    [
        ("model.widht=5", ("'model.widht'", "'width'")),
        ("train.step=5", ("'train.step'", "'steps'")),
        ("data.trian=x", ("'data.trian'", "'train'")),
        ("tokenizer.sise=5", ("'tokenizer.sise'", "'size'")),
        ("data.toy.distanse=5", ("'data.toy.distanse'", "'distance'")),
        ("sede=1", ("'sede'", "'seed'")),
        ("foo=1", ("'foo'", "seed")),
    ],
)
def test_an_unknown_key_suggests_the_nearest(word: str, parts: tuple[str, ...], train: Any) -> None:
    is_one_line(train(word), *parts)


@pytest.mark.parametrize(
    ("word", "reason"),
    [
        ("model.width=wide", "model.width=wide is not a whole number"),
        ("model.width=1.5", "model.width=1.5 is not a whole number"),
        ("train.lr=fast", "train.lr=fast is not a number"),
        ("train.compile=maybe", "train.compile=maybe should be 'auto', true or false"),
        ("train.optimizer=adam", "train.optimizer=adam should be"),
        ("data.batching=shuffled", "data.batching=shuffled should be"),
        ("seed=one", "seed=one is not a whole number"),
        ("model.width=[16,32]", "model.width="),
        ("head=5", "'head' is a group of settings"),
        ("model=[", "not a list"),
    ],
)
def test_a_wrong_type_names_the_key(word: str, reason: str, train: Any) -> None:
    is_one_line(train(word), reason)


@pytest.mark.parametrize(
    "key",
    [
        "model.width",
        "model.layers",
        "model.embedding",
        "tokenizer.size",
        "data.window",
        "train.steps",
        "train.epochs",
        "train.batch_tokens",
        "train.accumulate",
        "train.lr",
        "train.validate_every",
        "train.checkpoint_every",
        "train.log_every",
        "train.keep",
        "data.toy.count",
    ],
)
def test_a_size_of_zero_names_the_key(key: str, train: Any) -> None:
    is_one_line(train(f"{key}=0"), f"{key}=0 should be greater than")


def test_ema_and_asgd_together_are_refused(train: Any) -> None:
    is_one_line(train("train.ema=0.9", "train.optimizer=asgd"), "asgd averages the weights itself")


def test_a_word_that_is_no_setting_is_named(train: Any) -> None:
    is_one_line(train("fast"), "'fast' is not a setting", "key=value")


def test_a_model_that_does_not_exist_suggests_the_nearest(train: Any) -> None:
    is_one_line(train("model=lstn"), "there is no model 'lstn'", "'lstm'")


def test_a_tokenizer_that_does_not_exist_is_named(train: Any) -> None:
    is_one_line(train("tokenizer=chars"), "chars", "'char'")


def test_a_toy_that_does_not_exist_suggests_the_nearest(train: Any) -> None:
    is_one_line(train("data.train=toy:recal", "tokenizer=word"), "there is no toy:recal; did you mean 'toy:recall'?")


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("toy:clips", "toy:clips is for image-classification; captioning has toy:scenes"),
        ("builtin:stdlib", "builtin:stdlib is for lm, mlm, word2vec; captioning has toy:scenes"),
        ("toy:scene", "there is no toy:scene; did you mean 'toy:scenes'?"),
    ],
)
def test_a_toy_of_another_task_is_not_looked_for_on_the_hub(command: Any, source: str, said: str) -> None:
    is_one_line(command("train", "captioning", f"data.train={source}"), said)


def test_reading_both_ways_is_refused_for_language_modelling(train: Any) -> None:
    is_one_line(train("model.bidirectional=true"), "model.bidirectional=true")


@pytest.mark.parametrize(
    ("name", "parts"),
    [
        (
            "xy",
            ("'xy' is no task, recipe or YAML file", "there is audio-classification, captioning", "legato recipes"),
        ),
        ("lm/ptb-lstn", ("'lm/ptb-lstn' is no task", "'lm/ptb-lstm'")),
        ("no.yaml", ("there is no file no.yaml",)),
    ],
)
def test_an_unknown_task_or_recipe_is_named(name: str, parts: tuple[str, ...], command: Any) -> None:
    is_one_line(command("train", name), *parts)


def test_a_recipe_that_does_not_exist_suggests_the_nearest(command: Any) -> None:
    is_one_line(command("recipes", "lm/ptb-lsmt"), "there is no recipe 'lm/ptb-lsmt'", "'lm/ptb-lstm'")


@pytest.mark.parametrize("content", ["", "- a\n- b\n", "task: [", "task: lm\nmodle: lstm\n"])
def test_a_settings_file_that_is_wrong_is_refused(content: str, command: Any, tmp_path: Path) -> None:
    (tmp_path / "bad.yaml").write_text(content)
    answer = command("train", tmp_path / "bad.yaml", f"out={tmp_path}/run")
    is_one_line(answer, "'modle'" if "modle" in content else f"{tmp_path}/bad.yaml")


def test_training_nothing_in_particular_says_what_is_missing(command: Any) -> None:
    is_one_line(command("train"), "which task?")


def test_a_device_that_is_not_there_is_refused(train: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    is_one_line(train("device=cuda"), "device=cuda", "no CUDA device", "device=cpu")


def test_a_device_that_does_not_exist_is_refused(train: Any) -> None:
    is_one_line(train("device=tpu9"), "device=tpu9 is not a device")


@pytest.mark.parametrize(
    ("words", "part"),
    [
        (["trian"], "there is no verb 'trian'; did you mean 'train'?"),
        (["generate"], "Missing argument"),
        (["train", "--fast"], "--fast"),
    ],
)
def test_a_slip_in_the_command_itself_is_one_line_too(words: list[str], part: str, command: Any) -> None:
    is_one_line(command(*words), part)
