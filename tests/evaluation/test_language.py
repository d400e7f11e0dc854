"""How well a text is predicted: the sums by hand, and that reading in chunks or strips loses nothing."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from legato.data.batching.batch import IGNORE, Batch, Inputs
from legato.data.formats.text import Text
from legato.data.text.tokenizers import Tokenizer, TokenizerConfig
from legato.evaluation import lm as language
from legato.evaluation.lm import language_metrics, stream_loss, text_metrics, unspelt
from legato.models.base import SequenceModel, Sizes
from legato.nn.losses.vocabulary import smoothed_nll
from legato.registry import MODELS

NAMES = ["window", "elman", "gru", "lstm"]  # those that carry a state
V = 11


def build(name: str) -> SequenceModel:
    torch.manual_seed(0)
    model = MODELS.get(name)
    return model(model.Config(name=name, width=8, embedding=6, dropout=0.5), Sizes(V)).double().eval()  # type: ignore[no-any-return]


def text(length: int, seed: int = 1) -> Tensor:
    return torch.randint(V, (length,), generator=torch.Generator().manual_seed(seed))


def straight(model: SequenceModel, ids: Tensor) -> float:
    """The same sum in one forward pass, token by token."""
    with torch.no_grad():
        logits = model.readout(model(Batch(Inputs(ids[None, :-1]))).hidden[0])
    probabilities = logits.softmax(-1)
    return -sum(math.log(probabilities[t, token]) for t, token in enumerate(ids[1:].tolist()))


class Uniform:
    """Stands for a model that knows nothing, and remembers which tokens it was asked to read."""

    device = torch.device("cpu")

    def __init__(self) -> None:
        self.read: list[Tensor] = []

    def __call__(self, batch: Batch, state: Any = None) -> Any:
        self.read.append(batch.inputs.ids)
        return type("Out", (), {"hidden": torch.zeros(*batch.inputs.ids.shape, 1), "state": None})

    def nll(self, hidden: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        return smoothed_nll(torch.zeros(targets.numel(), V), targets.flatten(), 0.0)


# --- streams ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("length", [2, 3, 50])
def test_one_row_equals_one_forward_pass_over_the_whole_text(name: str, length: int) -> None:
    model, ids = build(name), text(length)
    assert stream_loss(model, ids) == pytest.approx(straight(model, ids), rel=1e-5)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("chunk", [1, 7, 49, 50, 1000])
def test_reading_in_chunks_changes_nothing(name: str, chunk: int, monkeypatch: pytest.MonkeyPatch) -> None:
    model, ids = build(name), text(51)
    monkeypatch.setattr(language, "CHUNK", chunk)
    assert stream_loss(model, ids) == pytest.approx(straight(model, ids), rel=1e-5)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("rows", [2, 3, 7])
def test_strips_equal_the_parts_of_the_text_read_each_from_nothing(name: str, rows: int) -> None:
    model, ids = build(name), text(43)
    length = -(-42 // rows)
    parts = [ids[start : start + length + 1] for start in range(0, 42, length)]
    assert stream_loss(model, ids, rows) == pytest.approx(sum(straight(model, part) for part in parts), rel=1e-5)


@given(length=st.integers(2, 80), rows=st.integers(1, 100), chunk=st.integers(1, 40))
@settings(max_examples=60, deadline=None)
def test_every_token_counts_once_however_it_is_read(length: int, rows: int, chunk: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(language, "CHUNK", chunk)
        total = stream_loss(Uniform(), text(length), rows)  # type: ignore[arg-type]
    assert total == pytest.approx((length - 1) * math.log(V), rel=1e-5)


@given(length=st.integers(2, 80), rows=st.integers(1, 100), chunk=st.integers(1, 40))
@settings(max_examples=30, deadline=None)
def test_no_more_tokens_are_read_at_once_than_a_chunk_or_one_a_row(length: int, rows: int, chunk: int) -> None:
    model = Uniform()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(language, "CHUNK", chunk)
        stream_loss(model, text(length), rows)  # type: ignore[arg-type]
    assert all(ids.numel() <= max(chunk, min(rows, length - 1)) for ids in model.read)


def test_more_rows_than_tokens_are_as_many_rows_as_tokens() -> None:
    model, ids = build("lstm"), text(5)
    assert stream_loss(model, ids, 100) == pytest.approx(stream_loss(model, ids, 4), rel=1e-6)


def test_a_text_of_one_token_has_nothing_to_predict() -> None:
    assert stream_loss(build("lstm"), text(1)) == 0


@pytest.mark.parametrize("name", NAMES)
def test_the_ids_may_be_of_any_integer_type(name: str) -> None:
    model, ids = build(name), text(20)
    assert stream_loss(model, ids.int(), 2) == stream_loss(model, ids, 2)


@pytest.mark.parametrize("name", NAMES)
def test_scoring_leaves_no_gradients_behind(name: str) -> None:
    model = build(name)
    stream_loss(model, text(20))
    assert all(parameter.grad is None for parameter in model.parameters())


# --- sums and figures ------------------------------------------------------------------------------


def test_nats_are_summed_over_the_targets_that_count() -> None:
    model = build("gru")
    hidden = model(Batch(Inputs(text(6).view(2, 3)))).hidden
    targets = torch.tensor([[1, IGNORE, 3], [IGNORE, IGNORE, 6]])
    logprobs = F.log_softmax(model.readout(hidden), -1)
    expected = -(logprobs[0, 0, 1] + logprobs[0, 2, 3] + logprobs[1, 2, 6]).item()
    assert model.nll(hidden, targets)[0].item() == pytest.approx(expected, rel=1e-5)


def test_the_figures_are_what_their_formulas_give_by_hand() -> None:
    # 8 tokens of probability 1/4 each, in 4 words and 10 bytes: 16 bits.
    found = language_metrics(8 * math.log(4), tokens=8, words=4, size=10)
    assert found == pytest.approx(
        {"loss": math.log(4), "perplexity": 4.0, "word_perplexity": 16.0, "bits_per_byte": 1.6}
    )


def test_bits_per_byte_do_not_depend_on_how_the_text_is_cut() -> None:
    few, many = (language_metrics(100.0, tokens=tokens, words=5, size=30) for tokens in (10, 20))
    assert few["bits_per_byte"] == many["bits_per_byte"]
    assert few["word_perplexity"] == many["word_perplexity"]
    assert few["perplexity"] != many["perplexity"]


def test_a_hopeless_loss_is_an_infinite_perplexity() -> None:
    found = language_metrics(1e6, tokens=1, words=1, size=1)
    assert found["perplexity"] == math.inf
    assert math.isfinite(found["bits_per_byte"])


def test_nothing_at_all_has_figures_too() -> None:
    assert language_metrics(0.0, 0, 0, 0) == {
        "loss": 0.0,
        "perplexity": 1.0,
        "word_perplexity": 1.0,
        "bits_per_byte": 0.0,
    }


# --- what the tokens do not spell ------------------------------------------------------------------


TEXT = "the cat saw  the dog\nthe \tdog ran\n"


@pytest.mark.parametrize("name", ["byte", "char", "bpe", "unigram"])
def test_a_tokenizer_that_keeps_the_text_is_charged_nothing(name: Any) -> None:
    tokenizer = Tokenizer.train(TokenizerConfig(name=name, size=300 if name == "bpe" else 40), [TEXT])
    assert unspelt(tokenizer.encode(TEXT), Text("a text", [TEXT], ""), tokenizer) == (0, 0)


@pytest.mark.parametrize(
    ("name", "written", "missing"),
    [
        ("word", "the cat saw the dog\n", (0, 0)),
        ("word", "the cow saw the dog\n", (3, 1)),  # its letters; its space is what parts it from others
        ("word", "the <unk> saw the dog\n", (0, 0)),  # as PTB has it: the text itself says no more
        ("word", "the <unk> saw the cow\n", (3, 1)),
        ("word", "the   cat  saw  the  dog\n", (5 - 1, 0)),  # one space a word, the first word's too, is spelt
        ("char", "the cöw\n", (2, 1)),
        ("wordpiece", "the cat, the ☃ dog", (3, 1)),
    ],
)
def test_letters_of_unknown_words_and_dropped_white_space_are_counted(
    name: Any, written: str, missing: tuple[int, int]
) -> None:
    tokenizer = Tokenizer.train(TokenizerConfig(name=name), [TEXT + ","])
    assert unspelt(tokenizer.encode(written), Text("a text", [written], ""), tokenizer) == missing


def test_an_unknown_words_letters_and_end_are_paid_for() -> None:
    tokenizer = Tokenizer.train(TokenizerConfig(name="word"), ["the cat\n"])
    written = "the caterpillar\n"
    ids = np.array([tokenizer.eos_id, *tokenizer.encode(written)])
    found = text_metrics(2 * math.log(2), ids, Text("a text", [written], ""), tokenizer)
    letters = len("caterpillar")
    assert found["bits_per_byte"] == pytest.approx((2 + (letters + 1) * math.log2(257)) / len(written))
    assert found["unspelt_bytes"] == letters
    assert found["unknown_share"] == 1 / 4
    assert found["perplexity"] == pytest.approx(2 ** (2 / 3))  # as published ones: a word like any other
