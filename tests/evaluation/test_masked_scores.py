"""Scores of guessed words, against sums worked out token by token."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import Tensor

from batches_compared import spread_targets
from legato.data.batching.batch import IGNORE, Batch, Inputs
from legato.data.batching.masking import Frame, Masker, fixed_batches
from legato.data.text.tokenizers import Tokenizer, TokenizerConfig
from legato.evaluation.mlm import guess, masked_nll, masked_scores, pseudo_nll
from legato.models.base import Sizes
from legato.models.recurrent import RecurrentConfig, RecurrentModel

TEXT = "the cat sat on a mat and saw one more dog run by in the rain\n" * 8
TOKENIZER = Tokenizer.train(TokenizerConfig(name="word", masked=True), [TEXT])
FRAME = Frame.of(TOKENIZER)
MASK = TOKENIZER.mask_id or 0


@pytest.fixture(scope="module")
def model() -> RecurrentModel:
    torch.manual_seed(0)
    config = RecurrentConfig(layers=1, width=8, bidirectional=True)
    return RecurrentModel(config, Sizes(TOKENIZER.size)).eval()


def log_probability(model: RecurrentModel, ids: np.ndarray, place: int) -> float:
    """Of the token at `place` of a framed row, given the others: one row, nothing batched."""
    hidden = ids.copy()
    hidden[place] = MASK
    with torch.no_grad():
        logits = model.readout(model(Batch(Inputs(torch.from_numpy(hidden)[None]))).hidden)[0, place]
    return float(logits.log_softmax(-1)[ids[place]])


@pytest.mark.parametrize("tokens", [1, 40, 10_000])
def test_pseudo_nll_hide_each_token_in_turn(model: RecurrentModel, tokens: int) -> None:
    texts = [TOKENIZER.encode(text) for text in ("the cat sat", "a", "one more dog run by")]
    expected = 0.0
    for text in texts:
        row = FRAME.rows([text]).token_ids.numpy()
        expected -= sum(log_probability(model, row[0], place + 1) for place in range(len(text)))
    total, count = pseudo_nll(model, texts, FRAME, MASK, tokens)
    assert count == 9
    assert total == pytest.approx(expected, rel=1e-5)


def test_scores_are_those_of_the_hidden_tokens_alone(model: RecurrentModel) -> None:
    batches = fixed_batches(TOKENIZER.encode(TEXT), Masker.of(TOKENIZER), FRAME, rows=3, window=20)
    nats, right, tokens = 0.0, 0, 0
    for batch in batches:
        assert batch.targets is not None
        with torch.no_grad():
            logp = model.readout(model(batch).hidden).log_softmax(-1)
        targets = spread_targets(batch)
        for row, place in (targets != IGNORE).nonzero().tolist():
            nats -= float(logp[row, place, targets[row, place]])
            right += int(logp[row, place].argmax() == targets[row, place])
            tokens += 1
    scores = masked_scores(model, batches)
    assert scores["loss"] == pytest.approx(nats / tokens, rel=1e-5)
    assert scores["masked_perplexity"] == pytest.approx(math.exp(nats / tokens), rel=1e-4)
    assert scores["masked_accuracy"] == right / tokens
    assert scores["masked_tokens"] == tokens


def test_scores_do_not_depend_on_how_many_logits_are_made_at_once(
    model: RecurrentModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    batches = fixed_batches(TOKENIZER.encode(TEXT), Masker.of(TOKENIZER), FRAME, rows=3, window=20)
    whole = masked_scores(model, batches)
    made: list[int] = []
    readout = model.readout

    def counted(hidden: Tensor) -> Tensor:
        made.append(len(hidden))
        return readout(hidden)

    monkeypatch.setattr("legato.evaluation.mlm.LOGITS", 2 * TOKENIZER.size)
    monkeypatch.setattr(model, "readout", counted)
    assert masked_scores(model, batches) == pytest.approx(whole, rel=1e-5)
    assert max(made) == 2


def test_the_loss_at_the_places_is_the_loss_of_all_targets(model: RecurrentModel) -> None:
    batch = fixed_batches(TOKENIZER.encode(TEXT), Masker.of(TOKENIZER), FRAME, rows=4, window=20)[0]
    at_places = masked_nll(model, model(batch), batch)[0]
    batch.targets, batch.positions = spread_targets(batch), None
    torch.testing.assert_close(masked_nll(model, model(batch), batch)[0], at_places)


def test_guesses_are_probabilities(model: RecurrentModel) -> None:
    found = guess(model, Batch(FRAME.rows([TOKENIZER.encode("the cat sat")]), positions=torch.tensor([[1, 2]])))
    assert found.shape == (1, 2, TOKENIZER.size)
    torch.testing.assert_close(found.sum(-1), torch.ones(1, 2))
