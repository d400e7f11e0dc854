"""Sentences without end: models that read any length are asked for as much as sentences have, and no more."""

from __future__ import annotations

import numpy as np
import pytest

from legato.data.formats.text_pairs import Pairs
from legato.data.text.tokenizers import Tokenizer, TokenizerConfig
from legato.decoding import SearchOptions
from legato.models.base import Sizes
from legato.models.seq2seq import Seq2SeqConfig, Seq2SeqModel
from legato.tasks import encoder_decoder as shared
from legato.tasks.translation.task import TranslationOptions
from legato.tasks.translation.translator import Translator

TEXTS = ["the cat sat", "a dog ran", "the rain"]
GIANT = "a" * 200


@pytest.fixture
def translator(monkeypatch: pytest.MonkeyPatch) -> Translator:
    monkeypatch.setattr(shared, "LONGEST", 40)
    tokenizer = Tokenizer.train(TokenizerConfig(name="char"), TEXTS)
    model = Seq2SeqModel(Seq2SeqConfig(width=8, layers=1), Sizes(tokenizer.size)).eval()
    return Translator(model, tokenizer, tokenizer)


def test_no_more_is_written_than_a_sentence_has(translator: Translator) -> None:
    assert translator.model.max_length is None
    assert translator.limit(np.zeros(10, dtype=np.int32)) == 39
    assert translator.limit(np.zeros(5, dtype=np.int32)) == 34
    assert translator.limit(np.zeros(5, dtype=np.int32), 7) == 7


def test_a_giant_word_is_said_to_be_too_long(translator: Translator) -> None:
    found = translator.predict([GIANT, "the cat"], TranslationOptions(), {})
    assert found[0].problem == "201 tokens, more than the model's 40; split the text"
    assert found[1].problem is None


@pytest.mark.parametrize(("source", "target"), [(GIANT, "the cat"), ("the cat", GIANT)])
def test_a_giant_word_does_not_hold_up_the_scores(translator: Translator, source: str, target: str) -> None:
    pairs = Pairs(source="x", sources=[*TEXTS, source], targets=[*TEXTS, target], lines=[1, 2, 3, 4])
    scores = translator.score(pairs, SearchOptions())
    assert scores["sentences"] == 4
    assert scores.get("too_long", 0) == (source == GIANT)
    ordinary = translator.score(Pairs(source="x", sources=TEXTS, targets=TEXTS, lines=[1, 2, 3]), SearchOptions())
    assert scores["loss"] == pytest.approx(ordinary["loss"])
