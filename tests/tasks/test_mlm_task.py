"""Masked language modelling: every model that reads both ways learns it, resumes to the bit, and leaves a folder."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
import torch

import legato
from batches_compared import same
from legato.config import Section
from legato.data.batching.batch import Batch
from legato.errors import ConfigError, DataError
from legato.registry import MODELS as REGISTERED
from legato.registry import TASKS
from legato.runs.config import check, settings_for, with_defaults
from legato.runs.train import plan_of
from legato.tasks.base import as_trained
from thinned import some
from tiny_runs import SMALL, read_metrics, weights_digest

MODELS = {
    "window": {},
    "elman": {},
    "gru": {},
    "lstm": {"model.layers": 2},
    "bert": {"model.heads": 2},
}


ANIMALS = ("cats", "dogs", "birds", "cows", "bees")


def write_story(path: Path, paragraphs: int, seed: int) -> Path:
    """Paragraphs of short lines, each paragraph about one animal: the words around tell the hidden one."""
    draw = random.Random(seed)
    animals = [draw.choice(ANIMALS) for _ in range(paragraphs)]
    path.write_text("\n\n".join("\n".join([" ".join([animal] * 6)] * 6) for animal in animals))
    return path


def settings(folder: Path, model: str = "lstm", **changes: Any) -> dict[str, Any]:
    train, valid = folder / "story.txt", folder / "story-valid.txt"
    if not train.exists():
        write_story(train, 40, 1)
        write_story(valid, 6, 2)
    small = {key: value for key, value in SMALL.items() if key not in ("model", "tokenizer")}
    more = {key.replace("__", "."): value for key, value in changes.items()}
    texts = {"data.train": str(train), "data.valid": str(valid), "data.window": 32, "train.batch_tokens": 256}
    return {**small, **texts, "model": model, **MODELS.get(model, {}), **more}


def trained(folder: Path, model: str = "lstm", **changes: Any) -> Path:
    legato.train("mlm", settings(folder, model, **changes), out=folder / "run", quiet=True)
    return folder / "run"


@pytest.mark.parametrize("model", some([*MODELS], ["elman", "bert"]))
def test_every_model_that_reads_both_ways_learns_to_guess(model: str, tmp_path: Path) -> None:
    steps = {"train.steps": 120, "train.validate_every": 40, "train.lr": 0.01, "train.warmup": 5}
    run = trained(tmp_path, model, **{"model.dropout": 0, "data.next_sentence": "false", **steps})
    lines = [line for line in read_metrics(run) if line["kind"] == "valid"]
    assert lines[-1]["masked_accuracy"] > 0.7
    best = legato.load(run)
    assert not best.module.can_generate
    assert best.task == "mlm"
    assert best.predict("dogs dogs dogs <mask> dogs dogs dogs") == "dogs"


@pytest.mark.slow
def test_a_run_whose_window_follows_a_short_model_can_go_on(tmp_path: Path) -> None:
    base = trained(tmp_path, "bert", data__window=16, **{"train.steps": 2})
    more = settings(tmp_path, "bert", **{"train.steps": 2, "from": str(base)})
    more = {key: value for key, value in more.items() if key.partition(".")[0] not in ("model", "tokenizer")}
    del more["data.window"]  # left out: as much as the model reads
    one = legato.train("mlm", more, out=tmp_path / "more", quiet=True)
    two = legato.train(None, {"resume": str(one.run), "train.steps": 4}, quiet=True)
    assert two.steps == 4
    with pytest.raises(ConfigError, match=r"data\.window=64 is longer than model\.length=16"):
        legato.train("mlm", {**more, "data.window": 64}, out=tmp_path / "no", quiet=True)


def test_bert_learns_from_pairs_of_sentences_too(tmp_path: Path) -> None:
    run = trained(tmp_path, "bert")
    lines = [line for line in read_metrics(run) if line["kind"] == "valid"]
    assert 0 <= lines[-1]["next_sentence_accuracy"] <= 1
    assert legato.load(run).module.config.next_sentence


def test_without_pairs_bert_has_no_such_head(tmp_path: Path) -> None:
    run = trained(tmp_path, "bert", data__next_sentence="false")
    assert not legato.load(run).module.config.next_sentence


@pytest.mark.parametrize("tokenizer", ["wordpiece", "bpe", "char", "word", "byte", "unigram"])
def test_every_tokenizer_gets_a_mask(tokenizer: str, tmp_path: Path) -> None:
    size = {"tokenizer.size": 300} if tokenizer in ("wordpiece", "bpe") else {}
    run = trained(tmp_path, **{"tokenizer": tokenizer, "data.whole_words": "true", "train.steps": 3, **size})
    model = legato.load(run)
    found = model.predictions(["the <mask> and cows"], nbest=2)[0]
    assert len(found.answers) == 2
    assert model.tokenizer.name == tokenizer


@pytest.mark.rare  # tests/slow/test_kills.py does this with every task
@pytest.mark.parametrize("model", ["lstm", "bert"])
def test_a_run_that_was_stopped_ends_with_the_same_bits(model: str, tmp_path: Path) -> None:
    half = tmp_path / "half"
    wanted = {**settings(tmp_path, model), "train.schedule": "constant", "train.warmup": 0, "train.steps": 12}
    legato.train("mlm", wanted, out=tmp_path / "all", quiet=True)
    legato.train("mlm", {**wanted, "train.steps": 6}, out=half, quiet=True)
    legato.train(resume=half, settings={"train.steps": 12}, quiet=True)
    assert weights_digest(half)["last"] == weights_digest(tmp_path / "all")["last"]


def test_accumulation_changes_the_rounding_alone(tmp_path: Path) -> None:
    task = TASKS.get("mlm")
    config = check(settings_for("mlm", settings(tmp_path, "bert", model__dropout=0, model__dropout_attention=0)))
    job = task.prepare(plan_of(config, torch.device("cpu")), lambda text: None)
    torch.manual_seed(0)
    model = REGISTERED.get("bert")(config.model, job.sizes)
    batch = job.batches.at(0)
    batch.labels = None
    whole = job.loss(model, batch, None)
    parts = [job.loss(model, part, None) for part in batch.split(2)]
    torch.testing.assert_close(sum(part.total for part in parts), whole.total)


def test_validation_hides_the_same_whatever_the_model_and_lesson(tmp_path: Path) -> None:
    batches: list[list[Batch]] = []
    for model, changes in (("lstm", {}), ("bert", {"data.whole_words": "true", "data.mask_share": 0.3})):
        config = check(settings_for("mlm", settings(tmp_path, model, **changes)))
        job = TASKS.get("mlm").prepare(plan_of(config, torch.device("cpu")), lambda text: None)
        batches.append(job.valid)
    for one, other in zip(*batches, strict=True):
        assert same(one, other)


def test_eval_gives_accuracy_and_pseudo_perplexity(tmp_path: Path) -> None:
    model = legato.load(trained(tmp_path, train__steps=3))
    scores = model.evaluate(test=str(tmp_path / "story-valid.txt"))
    assert scores["sentences"] == 36
    assert scores["pseudo_perplexity"] > 1
    assert 0 <= scores["masked_accuracy"] <= 1
    few = model.evaluate(test=str(tmp_path / "story-valid.txt"), max_sentences=5)
    assert few["sentences"] == 5
    assert few["masked_accuracy"] == scores["masked_accuracy"]


def test_eval_of_much_text_says_what_it_costs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = legato.load(trained(tmp_path, train__steps=3))
    monkeypatch.setattr("legato.tasks.mlm.task.MANY", 10)
    with pytest.warns(UserWarning, match="data.max_sentences=200"):
        model.evaluate(test=str(tmp_path / "story-valid.txt"))


def test_it_goes_on_from_a_model(tmp_path: Path) -> None:
    first = trained(tmp_path, "bert", train__steps=3)
    wanted = settings(tmp_path, "bert", train__steps=3)
    wanted = {key: value for key, value in wanted.items() if not key.startswith("model")}
    legato.train("mlm", {**wanted, "from": str(first)}, out=tmp_path / "more", quiet=True)
    more = legato.load(tmp_path / "more")
    assert more.tokenizer.fingerprint() == legato.load(first).tokenizer.fingerprint()
    assert more.about["from"].startswith(str(first))


def test_a_trained_model_learns_in_smaller_steps() -> None:
    task = TASKS.get("mlm")
    assert with_defaults(task, {})["train"]["lr"] == 1e-3
    assert with_defaults(task, {"from": "a folder"})["train"]["lr"] == 1e-4
    assert with_defaults(task, {"from": "a folder", "train": {"lr": 0.5}})["train"]["lr"] == 0.5


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"model": "gpt2"}, "model=gpt2 reads from left to right"),
        ({"model": "transformer"}, "model=transformer reads one text and writes another"),
        ({"model.bidirectional": "false"}, "must read both ways"),
        ({"model": "window", "model.around": "false"}, "must read both ways for mlm; leave out model.around=false"),
        ({"data.next_sentence": "true"}, "data.next_sentence=false"),
        ({"model": "bert", "model.length": 16}, "longer than model.length=16"),
        ({"data.mask_share": "0"}, "data.mask_share"),
        ({"data.train": None}, "'data.train' is needed"),
    ],
)
def test_what_cannot_be_is_said_in_one_line(changes: dict[str, Any], said: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=said) as problem:
        legato.train("mlm", {**settings(tmp_path), **changes}, out=tmp_path / "run", quiet=True)
    assert "\n" not in str(problem.value)
    assert not (tmp_path / "run").exists()


def test_a_text_of_marks_alone_is_refused(tmp_path: Path) -> None:
    (tmp_path / "blank.txt").write_text("\n\n \n.")
    with pytest.raises(DataError):
        trained(tmp_path, data__train=str(tmp_path / "blank.txt"))


def test_what_a_folder_remembers_as_nothing_is_not_remembered() -> None:
    class Settings(Section):
        window: int = 8

    assert as_trained(Settings(), "window", {"window": 4}) == 4
    assert as_trained(Settings(), "window", {"window": None}) == 8
    assert as_trained(Settings(), "window", {}) == 8
    assert as_trained(Settings(window=6), "window", {"window": 4}) == 6
