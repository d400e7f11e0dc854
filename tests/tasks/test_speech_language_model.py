"""Shallow fusion: a language model of the same tokens, or of words, in CTC's search."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import legato
from legato.data.batching.batch import Batch, Inputs
from legato.data.text.tokenizers import Tokenizer
from legato.data.text.vocabularies import TokenizerConfig
from legato.errors import ConfigError
from legato.folders.model_folder import read_model
from legato.tasks.speech.language_model import LanguageModel, fusion_with
from legato.tasks.speech.recognizer import Recognizer
from tiny_adapted import published_folder
from tiny_sounds import RATE, SMALL, TEXTS, samples_of, write_sounds

CPU = torch.device("cpu")
QUICK: dict[str, Any] = {"train.steps": 4, "train.samples": 0, "train.tensorboard": "false", "device": "cpu"}
SAID = ("low high", "high", "low low high")


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model of speech in characters, and language models of characters and words."""
    folder = tmp_path_factory.mktemp("fusion")
    legato.train("speech", {**write_sounds(folder), **SMALL, **QUICK}, out=folder / "speech", quiet=True)
    (folder / "texts.txt").write_text("\n".join(TEXTS * 8) + "\n")
    own = {"data.train": str(folder / "texts.txt"), "data.valid": str(folder / "texts.txt"), "model.layers": 1}
    for kind in ("char", "word"):
        settings = {**own, **QUICK, "model": "lstm", "model.width": 8, "tokenizer": kind, "train.batch_tokens": 64}
        legato.train("lm", {**settings, "data.window": 8}, out=folder / kind, quiet=True)
    return folder


def log_prob(place: Path, text: str) -> float:
    """log p(text and its end), by the language model alone."""
    held = read_model(place)
    ids = [held.start, *held.tokenizer.encode(text).tolist()]
    inputs = torch.tensor([ids])
    with torch.no_grad():
        found = held.module.readout(held.module(Batch(Inputs(inputs))).hidden)[0].log_softmax(-1)
    return float(sum(found[at, token] for at, token in enumerate([*ids[1:], held.tokenizer.eos_id])))


@pytest.mark.parametrize("kind", ["char", "word"])
@pytest.mark.parametrize("text", SAID)
def test_what_is_added_step_by_step_is_the_texts_probability(home: Path, kind: str, text: str) -> None:
    recognizer = Recognizer.of(legato.load(home / "speech").loaded)
    model = LanguageModel(read_model(home / kind), recognizer.tokenizer, recognizer.blank + 1)
    tokens = recognizer.tokenizer.encode(text).tolist()
    prefixes = [tokens[:count] for count in range(len(tokens) + 1)]
    found = model(prefixes)
    assert found.shape == (len(prefixes), recognizer.blank + 1)
    steps = sum(float(found[at, token]) for at, token in enumerate(tokens))
    total = steps + float(found[-1, recognizer.tokenizer.eos_id])
    assert total == pytest.approx(log_prob(home / kind, text), abs=1e-4)
    assert torch.equal(model(prefixes), found)  # as remembered


def test_it_is_asked_in_the_search(home: Path) -> None:
    held = legato.load(home / "speech")
    sounds = [(samples_of("low high", 3), RATE)]
    plain = held.predictions(sounds, beams=8, nbest=2)[0]
    fused = held.predictions(sounds, beams=8, nbest=2, lm=str(home / "word"), lm_weight=2.0)[0]
    assert plain.answers[0].score == pytest.approx(plain.answers[0].more["logprob"])
    for answer in fused.answers:
        wanted = answer.more["logprob"] + 2.0 * log_prob(home / "word", answer.text)
        assert answer.score == pytest.approx(wanted, abs=1e-3)
    longer = held.predictions(sounds, length_bonus=5.0)[0].answers[0]
    assert len(longer.text) >= len(plain.answers[0].text)
    scores = held.evaluate(test=str(home / "valid.tsv"), lm=str(home / "char"), beams=3)
    assert scores["search"] == "beam 3, LM 0.3"


def test_no_more_is_remembered_than_may_be(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("legato.tasks.speech.language_model.REMEMBERED", 3)
    recognizer = Recognizer.of(legato.load(home / "speech").loaded)
    model = LanguageModel(read_model(home / "char"), recognizer.tokenizer, recognizer.blank + 1)
    first = model([[0], [1], [2]])
    model([[3], [4]])
    assert len(model.remembered) == 2
    assert torch.equal(model([[2], [1]]), first[[2, 1]])


def test_what_is_no_language_model_of_these_tokens_is_refused(home: Path, tmp_path: Path) -> None:
    recognizer = Recognizer.of(legato.load(home / "speech").loaded)
    given = (0.3, 0.0, recognizer.tokenizer, recognizer.blank + 1, CPU)
    published_folder(tmp_path / "bert", "bert")
    with pytest.raises(ConfigError, match="bert is no language model that writes"):
        fusion_with(str(tmp_path / "bert"), *given)
    with pytest.raises(ConfigError, match="is no language model that writes"):
        fusion_with(str(home / "speech"), *given)
    other = Tokenizer.train(TokenizerConfig(name="char"), ["zxcv bnm,"])
    with pytest.raises(ConfigError, match=r"knows \d+ of the \d+ tokens that are written here; train it"):
        LanguageModel(read_model(home / "char"), other, other.size + 1)
    assert fusion_with(None, *given) is None
