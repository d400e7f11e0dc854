"""Weights or results that are not finite are never an answer: one line names the folder, in every task and verb."""

from __future__ import annotations

import json
import math
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

import legato
import tiny_questions
import tiny_reviews
import tiny_runs
import tiny_tagged
from answers import Command
from legato.errors import NotFiniteError
from refusals import is_one_line
from tiny_questions import squad
from tiny_reviews import write_pairs, write_reviews
from tiny_tagged import sentences, write_columns

QUICK: dict[str, Any] = {"train.steps": 1, "train.samples": 0, "train.tensorboard": "false", "device": "cpu"}


def text(folder: Path) -> dict[str, Any]:
    settings = tiny_runs.small(folder)
    return {key: settings[key] for key in ("data.train", "data.valid")}


def lm(folder: Path, **more: Any) -> tuple[str, dict[str, Any], str]:
    return "lm", {**tiny_runs.small(folder), **more}, f"data.test={folder / 'valid.txt'}"


def mlm(folder: Path) -> tuple[str, dict[str, Any], str]:
    small = {"model.width": 16, "model.layers": 1, "model.heads": 2, "data.window": 16, "train.batch_tokens": 64}
    return "mlm", {**text(folder), **small, "data.next_sentence": "false"}, f"data.test={folder / 'valid.txt'}"


def word2vec(folder: Path) -> tuple[str, dict[str, Any], str]:
    likeness = folder / "like.txt"
    likeness.write_text("cat dog 3\ncat rain 1\nmat rain 2\n")
    return "word2vec", {**text(folder), "model.width": 8}, f"data.similarity={likeness}"


def classification(folder: Path) -> tuple[str, dict[str, Any], str]:
    train = write_reviews(folder / "reviews.tsv")
    small = {key: tiny_reviews.SMALL[key] for key in ("model.width", "train.batch_rows")}
    return "classification", {"data.train": str(train), **small}, f"data.test={train}"


def several(folder: Path) -> tuple[str, dict[str, Any], str]:
    train = write_reviews(folder / "reviews.tsv", labels=("a", "a;b"))
    settings = {"data.train": str(train), "data.kind": "multilabel", "model.width": 16}
    return "classification", settings, f"data.test={train}"


def regression(folder: Path) -> tuple[str, dict[str, Any], str]:
    train = write_pairs(folder / "scale.tsv", scale=True)
    settings = {"data.train": str(train), "data.kind": "regression", "model.width": 16}
    return "classification", settings, f"data.test={train}"


def tagging(folder: Path, **more: Any) -> tuple[str, dict[str, Any], str]:
    train = write_columns(folder / "tagged.txt", sentences(20))
    small = {key: tiny_tagged.SMALL[key] for key in ("model.width", "model.embedding", "train.batch_rows")}
    settings = {"data.train": str(train), "data.valid": str(train), **small, **more}
    return "tagging", settings, f"data.test={train}"


def qa(folder: Path) -> tuple[str, dict[str, Any], str]:
    train = squad(folder / "squad.json")
    small = {key: tiny_questions.SMALL[key] for key in ("model.width", "model.layers", "train.batch_rows")}
    return "qa", {"data.train": str(train), **small}, f"data.test={train}"


def embedding(folder: Path) -> tuple[str, dict[str, Any], str]:
    draw, train = random.Random(0), folder / "alike.tsv"
    rows = [" ".join(draw.choices(tiny_runs.WORDS, k=4)) for _ in range(40)]
    train.write_text("".join(f"{row}\t{row} again\n" for row in rows))
    small = {"model.width": 16, "model.layers": 1, "train.batch_rows": 8, "tokenizer": "word"}
    return "embedding", {"data.train": str(train), **small}, f"data.test={train}"


def translation(folder: Path) -> tuple[str, dict[str, Any], str]:
    draw, names = random.Random(0), {}
    for side in ("en", "de"):
        rows = [" ".join(draw.choices(tiny_runs.WORDS, k=4)) for _ in range(30)]
        (folder / f"a.{side}").write_text("\n".join(rows) + "\n")
        names[side] = folder / f"a.{side}"
    pair = [str(names["en"]), str(names["de"])]
    small = {"model": "seq2seq", "model.width": 16, "model.layers": 1, "tokenizer": "word"}
    return "translation", {"data.train": pair, "data.valid": pair, **small}, f"data.test=[{','.join(pair)}]"


# Of each: how it is trained, and what it is asked.
TASKS: dict[str, tuple[Callable[..., tuple[str, dict[str, Any], str]], list[list[str]]]] = {
    "lm": (lm, [["generate", "the cat"], ["generate", "the", "--search", "sample", "--json"], ["embed", "the cat"]]),
    "mlm": (mlm, [["predict", "the <mask> sat", "--json"], ["embed", "the cat", "--json"]]),
    "word2vec": (word2vec, [["predict", "cat"], ["predict", "cat + dog", "--json"]]),
    "classification": (classification, [["predict", "a merry film", "--json"], ["predict", "a merry film"]]),
    "multilabel": (several, [["predict", "a merry film", "--json"]]),
    "regression": (regression, [["predict", "a merry film\ta sad one"]]),
    "tagging": (tagging, [["predict", "Anna sees Rome ."], ["predict", "Anna sees Rome .", "--json"]]),
    "crf": (lambda folder: tagging(folder, **{"head.crf": "true"}), [["predict", "Anna sees Rome ."]]),
    "qa": (qa, [["predict", "Who did it?\tAnna did it in 1806", "--json"]]),
    "embedding": (embedding, [["predict", "the cat\ta dog"], ["embed", "the cat", "--pool", "none", "--json"]]),
    "translation": (translation, [["predict", "the cat", "--json"], ["predict", "the cat"]]),
}


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], tuple[Path, str]]:
    """The model folder of a task, trained for a step, and what it is scored on."""
    made: dict[str, tuple[Path, str]] = {}

    def train(name: str) -> tuple[Path, str]:
        if name not in made:
            folder = tmp_path_factory.mktemp(name)
            task, settings, test = TASKS[name][0](folder)
            legato.train(task, {**settings, **QUICK}, out=str(folder / "run"), quiet=True)
            best = folder / "run" / "best"
            made[name] = (best if best.exists() else folder / "run" / "last"), test
        return made[name]

    return train


def damaged(folder: Path, out: Path, value: float = math.nan, name: str | None = None) -> str:
    """A copy one of whose tensors is not finite, and that tensor's name."""
    shutil.copytree(folder, out)
    tensors = load_file(out / "model.safetensors")
    name = name or next(key for key, tensor in sorted(tensors.items()) if tensor.dim() == 2)
    tensors[name][:] = value
    save_file(tensors, out / "model.safetensors", {"format": "pt"})
    return name


@pytest.mark.parametrize(
    ("name", "words"), [(name, words) for name, (_, asked) in TASKS.items() for words in asked], ids=str
)
def test_no_verb_answers_with_weights_that_are_not_finite(
    name: str, words: list[str], trained: Callable[[str], tuple[Path, str]], tmp_path: Path, command: Command
) -> None:
    damaged(trained(name)[0], tmp_path / "bad")
    verb, *rest = words
    answer = command(verb, tmp_path / "bad", *rest)
    answer.out = "" if name == "lm" and verb == "generate" else answer.out  # the prompt itself is written at once
    is_one_line(answer, str(tmp_path / "bad"), "its weights are not finite, first those of '")


def test_what_is_wrong_stands_on_a_line_of_its_own_behind_a_prompt(
    trained: Callable[[str], tuple[Path, str]], tmp_path: Path, command: Command
) -> None:
    damaged(trained("lm")[0], tmp_path / "bad")
    assert command("generate", tmp_path / "bad", "the cat").out == "the cat\n"


@pytest.mark.parametrize("name", TASKS)
def test_no_score_is_told_of_weights_that_are_not_finite(
    name: str, trained: Callable[[str], tuple[Path, str]], tmp_path: Path, command: Command
) -> None:
    folder, test = trained(name)
    damaged(folder, tmp_path / "bad", math.inf)
    answer = command("eval", tmp_path / "bad", test, "--json")
    answer.err = "\n".join(line for line in answer.err.splitlines() if "note:" not in line)
    is_one_line(answer, str(tmp_path / "bad"), "its weights are not finite")


@pytest.mark.parametrize("name", TASKS)
def test_answers_of_sound_weights_are_json(
    name: str, trained: Callable[[str], tuple[Path, str]], command: Command
) -> None:
    folder, test = trained(name)
    for verb, *rest in TASKS[name][1]:
        answer = command(verb, folder, *rest)
        assert answer.code == 0, answer.err
        if "--json" in rest:
            json.loads(answer.out.splitlines()[0], parse_constant=pytest.fail)
    answer = command("eval", folder, test, "--json")
    assert answer.code == 0, answer.err
    json.loads(answer.out, parse_constant=pytest.fail)


def test_the_transitions_of_a_crf_are_weights_too(
    trained: Callable[[str], tuple[Path, str]], tmp_path: Path, command: Command
) -> None:
    folder = trained("crf")[0]
    name = next(key for key in load_file(folder / "model.safetensors") if key.endswith("crf.transitions"))
    damaged(folder, tmp_path / "bad", math.nan, name)
    is_one_line(command("predict", tmp_path / "bad", "Anna sees Rome ."), "'crf.transitions'")


def test_results_that_overflow_though_the_weights_do_not_are_refused(
    trained: Callable[[str], tuple[Path, str]], tmp_path: Path, command: Command
) -> None:
    bias = next(k for k in load_file(trained("classification")[0] / "model.safetensors") if k.endswith("head.bias"))
    damaged(trained("classification")[0], tmp_path / "bad", 3.4e38, bias)
    tensors = load_file(tmp_path / "bad" / "model.safetensors")
    weight = tensors[bias.replace("bias", "weight")]
    weight[0], weight[1] = 3.4e38, -3.4e38  # so that one of the two sums is too large, whatever the text
    save_file(tensors, tmp_path / "bad" / "model.safetensors", {"format": "pt"})
    answer = command("predict", tmp_path / "bad", "a merry film")
    is_one_line(answer, str(tmp_path / "bad"), "its results are not finite, though its weights are")


def test_an_embedder_refuses_too_and_writes_no_file(
    trained: Callable[[str], tuple[Path, str]], tmp_path: Path, command: Command
) -> None:
    from legato.sklearn import Embedder

    damaged(trained("embedding")[0], tmp_path / "bad")
    with pytest.raises(NotFiniteError, match="its weights are not finite"):
        Embedder(str(tmp_path / "bad"), device="cpu").fit_transform(["the cat", "a dog"])
    (tmp_path / "texts.txt").write_text("the cat\na dog\n")
    for ending in ("npy", "npz", "jsonl", "tsv"):
        out = tmp_path / f"vectors.{ending}"
        answer = command("embed", tmp_path / "bad", "--file", tmp_path / "texts.txt", "--out", out)
        is_one_line(answer, "its weights are not finite")
        assert not out.exists()


def test_finite_numbers_whose_sum_overflows_are_answers() -> None:
    from legato.folders.finite_scores import check_finite

    check_finite(np.full(9, 3e38, dtype=np.float32), None)
    check_finite(torch.full((9,), -3e38), None)
    for bad in (math.nan, math.inf, -math.inf):
        with pytest.raises(NotFiniteError, match="the model: its results are not finite"):
            check_finite(torch.tensor([1.0, bad, 2.0]), None)
    with pytest.raises(NotFiniteError):
        check_finite(torch.tensor([math.inf, -math.inf]), None)


@pytest.mark.parametrize("weights", [True, False])
def test_of_a_model_that_was_never_in_a_folder_no_file_is_blamed(weights: bool) -> None:
    from legato.folders.finite_scores import not_finite

    module = torch.nn.Linear(2, 2)
    module.folder = None  # type: ignore[assignment]
    if weights:
        torch.nn.init.constant_(module.weight, math.nan)
    assert str(not_finite(module)).endswith("; train it again with a lower train.lr")
    assert not {"config.json", "fetch"} & set(str(not_finite(module)).split())
    module.folder = Path("some/model")  # type: ignore[assignment]
    assert "fetch the model again" in str(not_finite(module))


def test_a_perplexity_beyond_all_numbers_is_null_in_every_file_and_said(
    tmp_path: Path, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    from legato.evaluation import lm as language

    monkeypatch.setattr(language, "safe_exp", lambda value: math.inf)
    settings = tiny_runs.words(tiny_runs.small(tmp_path, train__steps=4))
    answer = command("train", "lm", *settings, f"out={tmp_path / 'run'}", "--json")
    assert answer.code == 0, answer.err
    assert "note: perplexity is infinite, so it is left empty (null)" in answer.err
    told = json.loads(answer.out, parse_constant=pytest.fail)
    assert told["valid.perplexity"] is None
    assert told["valid.loss"] > 0
    for file in sorted((tmp_path / "run").rglob("*.json*")):
        for part in file.read_text().splitlines() if file.suffix == ".jsonl" else [file.read_text()]:
            json.loads(part, parse_constant=pytest.fail)
    assert "| perplexity | not finite |" in (tmp_path / "run" / "best" / "README.md").read_text()
    answer = command("eval", tmp_path / "run", f"data.test={tmp_path / 'valid.txt'}", "--json")
    assert json.loads(answer.out, parse_constant=pytest.fail)["perplexity"] is None
    assert "perplexity is infinite" in answer.err
    longer = command("train", f"resume={tmp_path / 'run'}", "train.steps=8")
    assert longer.code == 0, longer.err


def test_a_run_whose_files_have_nan_from_before_goes_on(tmp_path: Path, command: Command) -> None:
    settings = tiny_runs.words(tiny_runs.small(tmp_path, train__steps=4))
    assert command("train", "lm", *settings, f"out={tmp_path / 'run'}").code == 0
    metrics = tmp_path / "run" / "metrics.jsonl"
    metrics.write_text('{"step": 1, "kind": "valid", "loss": NaN, "perplexity": Infinity}\n' + metrics.read_text())
    assert command("train", f"resume={tmp_path / 'run'}", "train.steps=8").code == 0
    lines = [json.loads(line, parse_constant=pytest.fail) for line in metrics.read_text().splitlines()]
    assert lines[0]["perplexity"] is None


def test_weights_that_the_last_step_spoilt_are_not_published(tmp_path: Path, command: Command) -> None:
    spoiling = {"train__lr": 1e30, "train__weight_decay": 1e30, "train__clip": 0, "train__optimizer": "sgd"}
    settings = tiny_runs.small(tmp_path, train__steps=1, **spoiling)
    answer = command("train", "lm", *tiny_runs.words(settings), f"out={tmp_path / 'run'}")
    assert answer.code == 2, answer.err
    assert "not finite" in answer.err.splitlines()[-1]
    assert not list((tmp_path / "run").glob("*/model.safetensors"))
