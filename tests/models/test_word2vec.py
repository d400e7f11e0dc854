"""word2vec: the loss is that of its equation, pair by pair; a word has one vector in every text."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from legato.config import validate
from legato.data.batching.batch import IGNORE, Batch, Inputs
from legato.data.processors import Processors
from legato.data.text.tokenizers import Tokenizer, TokenizerConfig
from legato.errors import LegatoError
from legato.folders.model_folder import load_model, save_model
from legato.models.base import Sizes
from legato.models.word2vec import SHARED, Word2VecConfig, Word2VecModel

V = 30


def build(**settings: Any) -> Word2VecModel:
    torch.manual_seed(0)
    model = Word2VecModel(validate(Word2VecConfig, {"width": 7, **settings}), Sizes(V)).double()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_()
    return model


def batch_of(rows: int, window: int = 2) -> Batch:
    draw = torch.Generator().manual_seed(1)
    targets = torch.randint(V, (rows, 2 * window), generator=draw)
    targets[torch.rand(rows, 2 * window, generator=draw) < 0.4] = IGNORE
    targets[0] = IGNORE  # a word alone
    ids, negatives = (torch.randint(V, (rows, 1), generator=draw) for _ in range(2))
    return Batch(Inputs(ids), targets, negatives=negatives)


def pair_by_pair(model: Word2VecModel, batch: Batch, negatives: int) -> torch.Tensor:
    """The equation, one pair after the other, with the negatives that the rows of a group share."""
    words, others = model.embedding.weight, model.output.weight
    assert batch.targets is not None
    assert batch.negatives is not None
    group = SHARED if batch.rows % SHARED == 0 else batch.rows
    total = torch.zeros((), dtype=torch.float64)
    for row in range(batch.rows):
        near = [int(word) for word in batch.targets[row] if word != IGNORE]
        first = row // group * group
        drawn = [int(word) for word in batch.negatives[first : first + group, 0]]
        if model.config.mode == "skip-gram":
            pairs = [(words[int(batch.inputs.ids[row, 0])], word) for word in near]
        else:
            pairs = [(words[near].mean(0), int(batch.inputs.ids[row, 0]))] if near else []
        for vector, right in pairs:
            total = total - F.logsigmoid(vector @ others[right])
            wrong = torch.stack([-F.logsigmoid(-vector @ others[word]) for word in drawn])
            total = total + negatives * wrong.mean()
    return total


@pytest.mark.parametrize("rows", [5, SHARED, 2 * SHARED])
@pytest.mark.parametrize("mode", ["skip-gram", "cbow"])
def test_the_loss_of_a_batch_is_that_of_its_pairs(mode: str, rows: int) -> None:
    model, batch = build(mode=mode), batch_of(rows)
    with torch.no_grad():
        found, wanted = model.contrast(batch, 5), pair_by_pair(model, batch, 5)
    assert float(found) == pytest.approx(float(wanted), rel=1e-5)  # logarithms are taken in float32


@pytest.mark.parametrize("mode", ["skip-gram", "cbow"])
def test_both_tables_learn(mode: str) -> None:
    model = build(mode=mode)
    model.contrast(batch_of(8), 5).backward()
    assert all(parameter.grad is not None and parameter.grad.any() for parameter in model.parameters())


def test_a_word_has_one_vector_in_every_text() -> None:
    model = build()
    one, other = (
        model.states(Batch(Inputs(torch.tensor([[3, 4, 5]])))),
        model.states(Batch(Inputs(torch.tensor([[9, 4, 1]])))),
    )
    assert len(one) == 1
    assert torch.equal(one[0][0, 1], other[0][0, 1])
    assert torch.equal(model(Batch(Inputs(torch.tensor([[3, 4, 5]])))).hidden, one[0])


def test_vectors_can_be_a_body_without_neighbours() -> None:
    model = build()
    assert model.readout(model(Batch(Inputs(torch.tensor([[3, 4]])))).hidden).shape == (1, 2, V)
    model.drop_readout()
    assert [name for name, _ in model.named_parameters()] == ["embedding.weight"]
    with pytest.raises(LegatoError, match="guesses no words"):
        model.readout(model(Batch(Inputs(torch.tensor([[3, 4]])))).hidden)


def test_a_folder_gives_the_same_vectors(tmp_path: Path) -> None:
    tokenizer = Tokenizer.train(TokenizerConfig(name="word"), ["a b c d\ne f"])
    model = Word2VecModel(Word2VecConfig(width=4, mode="cbow"), Sizes(tokenizer.size))
    save_model(tmp_path, model, Processors(tokenizer), task="word2vec", about={}, card="")
    loaded = load_model(tmp_path)
    assert '"legato-word2vec"' in (tmp_path / "config.json").read_text()
    assert loaded.module.config == model.config
    assert torch.equal(loaded.module.embedding.weight, model.embedding.weight)  # type: ignore[union-attr]
