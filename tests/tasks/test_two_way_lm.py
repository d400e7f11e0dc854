"""Training and scoring a model that is two language models."""

from __future__ import annotations

import json
import math
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import legato
from legato.config import validate
from legato.data.batching.batch import IGNORE, Batch, Inputs
from legato.data.formats.text import Text
from legato.data.text.tokenizers import Tokenizer, TokenizerConfig
from legato.data.text.word_bytes import vocabulary_bytes
from legato.errors import ConfigError, LegatoError
from legato.folders.model_folder import load_model
from legato.models.base import Sizes
from legato.models.elmo import ElmoConfig, ElmoModel
from legato.nn.characters import tell_spelling
from legato.runs.config import check, settings_for
from legato.runs.train import plan_of
from legato.tasks.lm.job import TwoWayJob, score_text, two_way_loss
from legato.tasks.lm.task import LanguageModelling
from tiny_runs import small, weights_digest

ELMO = {"model": "elmo", "model__width": 12, "model__layers": 2, "model__filters": 2, "model__reach": 3}


def elmo(folder: Path, **changes: Any) -> dict[str, Any]:
    settings = small(folder, **{**ELMO, "train__lr": 0.02, "train__batch_tokens": 64, **changes})
    settings.pop("tokenizer")  # words are the default here
    return settings


@pytest.fixture
def model() -> ElmoModel:
    torch.manual_seed(0)
    config = validate(ElmoConfig, {"width": 6, "filters": 2, "reach": 3, "dropout": 0})
    return ElmoModel(config, Sizes(9)).double().eval()


def by_hand(model: ElmoModel, ids: list[int], target: int) -> tuple[float, float]:
    """Mean nats of a window's next words, and of its words before."""
    hidden = model(Batch(Inputs(torch.tensor([ids])))).hidden[0]
    before, behind = model.halves(hidden)
    following = torch.tensor([*ids[1:], target])
    forward = F.cross_entropy(model.output(before), following)
    backward = F.cross_entropy(model.output(behind[1:]), torch.tensor(ids[:-1]))
    return float(forward.detach()), float(backward.detach())


def test_the_loss_is_the_mean_of_both_directions(model: ElmoModel) -> None:
    ids = [3, 1, 4, 1, 5]
    batch = Batch(Inputs(torch.tensor([ids])), torch.tensor([[1, 4, 1, 5, 8]]), tokens=5)
    loss = two_way_loss(model, batch)
    assert float(loss.total.detach()) / 5 == pytest.approx(sum(by_hand(model, ids, 8)) / 2)
    assert float(loss.reported.detach()) == pytest.approx(float(loss.total.detach()))


def test_padding_carries_no_loss(model: ElmoModel) -> None:
    ids, targets = torch.tensor([[3, 1, 4, 7, 7]]), torch.tensor([[1, 4, 8, IGNORE, IGNORE]])
    padded = two_way_loss(model, Batch(Inputs(ids, lengths=torch.tensor([3])), targets, tokens=3))
    alone = two_way_loss(model, Batch(Inputs(ids[:, :3]), targets[:, :3], tokens=3))
    torch.testing.assert_close(padded.total, alone.total)


def test_a_text_is_scored_from_both_of_its_ends(model: ElmoModel) -> None:
    tokenizer = Tokenizer.train(TokenizerConfig(name="word"), ["the cat saw the dog and ran\n"])
    tell_spelling(model, torch.from_numpy(vocabulary_bytes(tokenizer)))
    ids = [tokenizer.eos_id, *tokenizer.encode("the dog saw\nthe cat\n").tolist()]
    text = Text("a text", ["the dog saw\nthe cat\n"], "")
    scores = score_text(model, ids, text, rows=1, tokenizer=tokenizer)
    assert ids[-1] == tokenizer.eos_id
    forward, _ = by_hand(model, ids[:-1], ids[-1])
    _, backward = by_hand(model, ids, 0)
    assert scores["perplexity"] == pytest.approx(math.exp(forward))
    assert scores["backward_perplexity"] == pytest.approx(math.exp(backward))
    assert scores["loss"] == pytest.approx((forward + backward) / 2)
    assert scores["tokens"] == len(ids) - 1


@pytest.mark.slow
def test_a_run_learns_and_its_folder_scores_the_same(tmp_path: Path) -> None:
    for name, lines in (("train", 40), ("valid", 12)):  # what follows what is certain, but at a line's ends
        pair = ("the cat sat on a mat\n", "one more dog saw rain\n")
        (tmp_path / f"{name}.txt").write_text("".join(pair[number * 7 % 5 % 2] for number in range(lines)))
    settings = elmo(tmp_path, train__steps=40, train__validate_every=20)
    result = legato.train("lm", settings, out=tmp_path / "run", quiet=True)
    first = json.loads((tmp_path / "run" / "metrics.jsonl").read_text().splitlines()[0])
    assert result.metrics["valid.loss"] < first["loss"] / 2
    assert result.metrics["valid.perplexity"] < 4
    assert result.metrics["valid.backward_perplexity"] < 4
    loaded = load_model(tmp_path / "run" / "best")
    assert isinstance(loaded.module, ElmoModel)
    assert loaded.tokenizer.name == "word"
    config = json.loads((tmp_path / "run" / "best" / "config.json").read_text())
    assert config["model_type"] == "legato-elmo"
    told = legato.load(tmp_path / "run").evaluate(test=settings["data.valid"])
    assert told["backward_perplexity"] == pytest.approx(result.metrics["valid.backward_perplexity"], rel=1e-5)
    assert told["perplexity"] == pytest.approx(result.metrics["valid.perplexity"], rel=1e-5)


def test_guesses_begin_as_frequent_as_the_words(tmp_path: Path) -> None:
    config = check(settings_for("lm", elmo(tmp_path)))
    job = LanguageModelling.prepare(plan_of(config, torch.device("cpu")), lambda _: None)
    assert isinstance(job, TwoWayJob)
    assert isinstance(config.model, ElmoConfig)
    model = ElmoModel(config.model, job.sizes)
    job.initialise(model)
    counts = torch.bincount(torch.from_numpy(job.ids["train"].astype("int64")), minlength=job.sizes.vocabulary) + 1.0
    torch.testing.assert_close(model.output.bias.detach().softmax(0), counts / counts.sum())


@pytest.mark.rare  # tests/slow/test_kills.py does this with every task
def test_a_resumed_run_ends_in_the_same_bits(tmp_path: Path) -> None:
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    legato.train("lm", elmo(tmp_path, train__checkpoint_every=4, train__keep=9), out=whole, quiet=True)
    shutil.copytree(whole, cut)
    for step in (8, 12):
        shutil.rmtree(cut / "checkpoints" / f"step-{step}")
    (cut / "result.json").unlink()
    legato.train(resume=cut, quiet=True)
    assert weights_digest(cut) == weights_digest(whole)


def test_rows_may_be_learned_one_by_one(tmp_path: Path) -> None:
    result = legato.train("lm", elmo(tmp_path, data__batching="rows", data__window=8), out=tmp_path / "r", quiet=True)
    assert math.isfinite(result.metrics["valid.loss"])


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"data__batching": "streams"}, "data.batching=streams reads a text from its left only"),
        ({"data__window": 1}, "data.window=1 has no word before another"),
        ({"data__train": "toy:recall"}, "toy:recall is for models that write"),
    ],
)
def test_what_cannot_be_learned_both_ways_is_told(tmp_path: Path, changes: dict[str, Any], told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        legato.train("lm", elmo(tmp_path, **changes), out=tmp_path / "run", quiet=True)


def test_it_writes_no_text(tmp_path: Path) -> None:
    legato.train("lm", elmo(tmp_path, train__steps=2), out=tmp_path / "run", quiet=True)
    with pytest.raises(LegatoError):
        legato.load(tmp_path / "run").generate("the")


def test_an_lstm_that_reads_letters_is_trained_and_writes(tmp_path: Path) -> None:
    settings = small(tmp_path, tokenizer="word", model__characters=6, train__batch_tokens=64, train__steps=4)
    result = legato.train("lm", settings, out=tmp_path / "run", quiet=True)
    model = legato.load(tmp_path / "run")
    told = model.evaluate(test=settings["data.valid"])
    assert told["perplexity"] == pytest.approx(result.metrics["valid.perplexity"], rel=1e-5)
    assert isinstance(model.generate("the cat", max_tokens=3), str)
