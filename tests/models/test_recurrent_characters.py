"""Recurrent models that read how words are spelt, beside which words they are."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from legato.config import validate
from legato.data.batching.batch import Batch, Inputs
from legato.data.text.tokenizers import Tokenizer, TokenizerConfig
from legato.data.text.word_bytes import vocabulary_bytes, word_bytes
from legato.decoding import SearchOptions, search
from legato.models.base import SequenceModel, Sizes
from legato.models.recurrent import RecurrentConfig, RecurrentModel
from legato.nn.characters import tell_spelling
from legato.nn.recurrent import CELLS

V = 9


def build(name: str = "lstm", **changes: Any) -> RecurrentModel:
    torch.manual_seed(0)
    small = {"name": name, "width": 8, "embedding": 6, "characters": 7, "dropout": 0.0, **changes}
    return RecurrentModel(validate(RecurrentConfig, small), Sizes(V)).double().eval()


def spelt(words: list[str]) -> Tensor:
    return torch.from_numpy(word_bytes(words)).long().unsqueeze(0)


def close(left: Any, right: Any) -> None:
    torch.testing.assert_close(left, right, rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize("name", CELLS)
def test_words_with_one_id_differ_by_their_letters(name: str) -> None:
    model, ids = build(name), torch.tensor([[1, 1]])
    one = model(Batch(Inputs(ids, characters=spelt(["Paris", "rose"])))).hidden
    other = model(Batch(Inputs(ids, characters=spelt(["Paris", "fell"])))).hidden
    close(one[:, 0], other[:, 0])
    assert not torch.allclose(one[:, 1], other[:, 1])


@pytest.mark.parametrize("characters", [1, 2, 7, 64])
def test_any_number_of_features_will_do(characters: int) -> None:
    model = build(characters=characters)
    states = model.states(Batch(Inputs(torch.tensor([[1, 2]]), characters=spelt(["a", "bc"]))))
    assert states[0].shape == (1, 2, 6 + characters)


@pytest.mark.parametrize("bidirectional", [False, True])
def test_padding_changes_nothing(bidirectional: bool) -> None:
    model = build(bidirectional=bidirectional)
    short = model(Batch(Inputs(torch.tensor([[3, 4]]), characters=spelt(["ab", "c"])))).hidden
    ids, letters = torch.tensor([[3, 4, 5]]), spelt(["ab", "c", "muchlonger"])
    long = model(Batch(Inputs(ids, characters=letters, lengths=torch.tensor([2])))).hidden
    close(long[:, :2], short)


def test_the_readout_stays_tied_to_the_embedding() -> None:
    model = build(tied=True)
    assert model.output.weight is model.embedding.weight


def test_without_characters_nothing_is_added() -> None:
    model = build(characters=0)
    assert not model.config.reads_characters
    assert model.words is None
    assert "words" not in {name.split(".")[0] for name in model.state_dict()}


def test_it_says_that_it_reads_characters() -> None:
    assert build().config.reads_characters


def test_texts_are_written_with_the_vocabulary_s_spelling() -> None:
    tokenizer = Tokenizer.train(TokenizerConfig(name="word"), ["the cat saw the dog and ran off\n"])
    model: SequenceModel = build()
    assert tokenizer.size == V
    tell_spelling(model, torch.from_numpy(vocabulary_bytes(tokenizer)))
    row = tokenizer.encode("the cat").tolist()
    found = search(model, [row], SearchOptions(max_tokens=6), eos=None)[0][0]
    for token in found.tokens:
        letters = spelt([tokenizer.token(i) if i != tokenizer.eos_id else "" for i in row])
        with torch.no_grad():
            hidden = model(Batch(Inputs(torch.tensor([row]), characters=letters))).hidden
        assert token == int(model.readout(hidden[0, -1]).argmax())
        row.append(token)
