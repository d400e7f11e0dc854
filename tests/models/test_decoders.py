"""What all decoders promise: several texts in one row, forgotten activations, windows, and a longest text."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from legato.config import validate
from legato.data.batching.batch import Batch, Inputs
from legato.errors import LegatoError
from legato.models.base import Sizes
from legato.models.decoder import DecoderModel
from legato.nn.capture import record
from legato.registry import MODELS

V = 13
SMALL: dict[str, Any] = {"layers": 3, "width": 12, "heads": 2, "length": 20, "dropout": 0.0}
KINDS: dict[str, dict[str, Any]] = {
    "gpt2": {"name": "gpt2"},
    "llama": {"name": "llama"},
    "mistral": {"name": "llama", "family": "mistral", "window": 3, "kv_heads": 1},
    "qwen2": {"name": "llama", "family": "qwen2", "window": 4, "window_layers": [1, 2], "tied": True},
    "qwen3": {"name": "llama", "family": "qwen3", "window": 3, "window_layers": [0, 2], "head_width": 4},
}


def build(kind: str, **asked: Any) -> DecoderModel:
    """A small model in double precision, with weights large enough to have opinions."""
    torch.manual_seed(0)
    settings = {**SMALL, **KINDS[kind], **asked}
    model: type[DecoderModel] = MODELS.get(settings["name"])
    made = model(validate(model.Config, settings), Sizes(V)).double().eval()
    with torch.no_grad():
        for parameter in made.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    return made


def tokens(rows: int, length: int) -> Tensor:
    return torch.randint(V, (rows, length), generator=torch.Generator().manual_seed(length))


def close(left: Any, right: Any) -> None:
    torch.testing.assert_close(left, right, rtol=1e-9, atol=1e-10)


# --- several texts in one row -----------------------------------------------------------------------

DOCUMENTS = torch.tensor([[0] * 7 + [1] + [2] * 4, [0] * 2 + [4] * 10])


@pytest.mark.parametrize("kind", KINDS)
def test_texts_that_share_a_row_are_read_as_if_each_stood_alone(kind: str) -> None:
    model, ids = build(kind), tokens(2, 12)
    together = model(Batch(Inputs(ids, document_ids=DOCUMENTS))).hidden
    for row in range(2):
        for document in DOCUMENTS[row].unique():
            inside = DOCUMENTS[row] == document
            alone = model(Batch(Inputs(ids[row : row + 1, inside]))).hidden[0]
            close(together[row, inside], alone)


@pytest.mark.parametrize("kind", KINDS)
def test_rows_of_one_text_need_no_documents(kind: str) -> None:
    model, ids = build(kind), tokens(2, 12)
    one = torch.zeros(2, 12, dtype=torch.long)
    close(model(Batch(Inputs(ids, document_ids=one))).hidden, model(Batch(Inputs(ids))).hidden)


# --- training ---------------------------------------------------------------------------------------


def gradients(model: DecoderModel, batch: Batch) -> dict[str, Tensor]:
    model.zero_grad()
    torch.manual_seed(3)  # the same dropout
    model.readout(model(batch).hidden).logsumexp(-1).sum().backward()
    return {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}


@pytest.mark.parametrize("documents", [None, DOCUMENTS])
@pytest.mark.parametrize("kind", KINDS)
def test_what_is_forgotten_and_computed_again_gives_the_same_gradients(kind: str, documents: Tensor | None) -> None:
    model, batch = build(kind, dropout=0.3).train(), Batch(Inputs(tokens(2, 12), document_ids=documents))
    kept = gradients(model, batch)
    model.stack.recompute = True
    close(gradients(model, batch), kept)
    assert set(kept) == {name for name, _ in model.named_parameters()}


@pytest.mark.parametrize("kind", KINDS)
def test_what_pads_the_vocabulary_gets_no_gradient(kind: str) -> None:
    model = build(kind).train()
    gradients(model, Batch(Inputs(tokens(2, 12))))
    for table in (model.embedding, model.output):
        assert table.weight.grad is not None
        assert not table.weight.grad[V:].any()


# --- windows and caches -----------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["mistral", "qwen2", "qwen3"])
def test_a_layer_with_a_window_looks_no_further_back(kind: str) -> None:
    model = build(kind)
    with record() as trace, torch.no_grad():
        model(Batch(Inputs(tokens(1, 12))))
    back = torch.arange(12)[:, None] - torch.arange(12)  # how far each looks
    for layer, window in enumerate(model.stack.windows):
        (weights,) = trace[f"decoder.{layer}.attention.weights"]
        seen = (back >= 0) if window is None else (back >= 0) & (back < window)
        assert torch.equal(weights[0, 0] > 0, seen)


@pytest.mark.parametrize("sizes", [[12], [5, 1, 1, 1, 4], [1] * 12, [2, 10]])
@pytest.mark.parametrize("kind", KINDS)
def test_a_cache_filled_in_any_pieces_gives_the_logits_of_the_whole(kind: str, sizes: list[int]) -> None:
    model, ids = build(kind), tokens(3, 12)
    state, at = model.start(3, 12), 0
    with torch.no_grad():
        whole = model.readout(model(Batch(Inputs(ids))).hidden)
    for size in sizes:
        logits = model.prefill(Inputs(ids[:, at : at + size]), state)
        at += size
        close(logits, whole[:, at - 1])


@pytest.mark.parametrize("kind", KINDS)
def test_ragged_prompts_and_the_steps_after_them_give_the_logits_of_each_alone(kind: str) -> None:
    model, ids, lengths = build(kind), tokens(4, 14), torch.tensor([6, 1, 4, 2])
    state = model.start(4, 14)
    logits = model.prefill(Inputs(ids[:, :6], lengths=lengths), state)
    with torch.no_grad():
        for step in range(8):
            for row, length in enumerate(lengths.tolist()):
                alone = torch.cat([ids[row, :length], ids[row, 6 : 6 + step]])[None]
                close(logits[row], model.readout(model(Batch(Inputs(alone))).hidden)[0, -1])
            logits = model.step(ids[:, 6 + step], state)


# --- the longest text -------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_a_text_beyond_the_longest_is_refused(kind: str) -> None:
    model = build(kind)
    assert model.max_length == 20
    model(Batch(Inputs(tokens(1, 20))))
    with pytest.raises(LegatoError, match="a sequence of 21 tokens is too long: this model goes up to 20"):
        model(Batch(Inputs(tokens(1, 21))))
    state = model.start(1, 30)
    model.prefill(Inputs(tokens(1, 20)), state)
    with pytest.raises(LegatoError, match="a sequence of 21 tokens is too long: this model goes up to 20"):
        model.step(torch.tensor([1]), state)
