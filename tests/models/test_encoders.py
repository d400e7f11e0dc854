"""What BERT, RoBERTa and DistilBERT promise as models; `test_bert_family.py` holds them to Hugging Face's."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from legato.config import validate
from legato.data.batching.batch import Batch, Inputs
from legato.errors import ConfigError, LegatoError
from legato.models.base import Sizes, count_parameters, measure
from legato.models.encoder import EncoderModel
from legato.nn.capture import record
from legato.registry import MODELS, PUBLISHED

NAMES = ["bert", "roberta", "distilbert"]
V, T = 57, 9
LENGTHS = torch.tensor([9, 4, 6])


def made(name: str, **asked: Any) -> EncoderModel:
    torch.manual_seed(0)
    model = MODELS.get(name)
    small = {"name": name, "layers": 2, "width": 24, "heads": 4, "length": 16}
    module: EncoderModel = model(validate(model.Config, {**small, **asked}), Sizes(V)).eval()
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    return module


def tokens(length: int = T) -> Tensor:
    return torch.randint(V, (3, length), generator=torch.Generator().manual_seed(2))


def close(found: Tensor, expected: Tensor, within: float = 1e-5) -> None:
    torch.testing.assert_close(found, expected, rtol=within, atol=within)


@pytest.mark.parametrize("name", NAMES)
def test_padding_never_changes_a_state(name: str) -> None:
    module, ids = made(name).double(), tokens()
    together = module(Batch(Inputs(ids, lengths=LENGTHS))).hidden
    with torch.no_grad():
        packed = module(Batch(Inputs(ids, lengths=LENGTHS))).hidden
    for row, length in enumerate(LENGTHS.tolist()):
        alone = module(Batch(Inputs(ids[row : row + 1, :length]))).hidden[0]
        close(together[row, :length], alone, 1e-9)
        close(packed[row, :length], alone, 1e-9)


@pytest.mark.parametrize("name", NAMES)
def test_texts_that_share_a_row_are_read_apart(name: str) -> None:
    module, ids = made(name).double(), tokens()[:1]
    shared = module(Batch(Inputs(ids, document_ids=torch.tensor([[0] * 4 + [1] * 5])))).hidden
    apart = [module(Batch(Inputs(part))).hidden for part in ids.split([4, 5], dim=1)]
    close(shared, torch.cat(apart, dim=1), 1e-9)


@pytest.mark.parametrize("name", NAMES)
def test_every_token_sees_every_other(name: str) -> None:
    module, ids = made(name), tokens()
    changed = ids.clone()
    changed[:, -1] = (changed[:, -1] + 1) % V
    before, after = module(Batch(Inputs(ids))).hidden, module(Batch(Inputs(changed))).hidden
    assert ((before - after).abs().amax(-1) > 1e-6).all()
    assert not module.can_generate


def test_segments_left_out_are_first_sentences() -> None:
    module, ids = made("bert"), tokens()
    zeros, ones = torch.zeros_like(ids), torch.ones_like(ids)
    plain = module(Batch(Inputs(ids))).hidden
    close(plain, module(Batch(Inputs(ids, segments=zeros))).hidden)
    assert not torch.allclose(plain, module(Batch(Inputs(ids, segments=ones))).hidden)


def test_a_model_without_segments_takes_pairs_all_the_same() -> None:
    ids = tokens()
    for name in ("roberta", "distilbert"):
        module = made(name)
        close(module(Batch(Inputs(ids))).hidden, module(Batch(Inputs(ids, segments=torch.ones_like(ids)))).hidden)


@pytest.mark.parametrize("name", NAMES)
def test_a_text_beyond_the_longest_is_refused(name: str) -> None:
    module = made(name)
    assert module.max_length == 16
    module(Batch(Inputs(tokens(16))))
    with pytest.raises(LegatoError, match="a sequence of 17 tokens is too long: this model goes up to 16"):
        module(Batch(Inputs(tokens(17))))


@pytest.mark.parametrize("name", NAMES)
def test_what_is_worth_seeing_is_captured(name: str) -> None:
    with record() as trace:
        made(name)(Batch(Inputs(tokens(), lengths=LENGTHS)))
    weights = trace["encoder.1.attention.weights"][0]  # (B, H, T, T)
    assert weights.shape == (3, 4, T, T)
    assert not weights[1, :, :, 4:].any()
    assert "encoder.1.hidden" in trace


@pytest.mark.parametrize("name", NAMES)
def test_parameters_are_counted_as_in_files(name: str) -> None:
    """So what pads the vocabulary in memory is not among them."""
    module = made(name)
    _, tensors = PUBLISHED.get(name).save(module)
    assert count_parameters(module) == sum(tensor.numel() for tensor in tensors.values())
    assert measure(type(module), module.config, Sizes(V)) == count_parameters(module)


@pytest.mark.parametrize("name", NAMES)
def test_every_part_learns(name: str) -> None:
    """From masked words and, where there is that head, from pairs."""
    module = made(name).train()
    hidden = module(Batch(Inputs(tokens(), segments=tokens() % 2))).hidden
    loss = module.readout(hidden).logsumexp(-1).sum()
    if module.relation is not None:
        loss = loss + module.next_sentence(hidden)[:, 0].sum()
    loss.backward()
    assert all(p.grad is not None and p.grad.any() for p in module.parameters())


def test_a_next_sentence_head_needs_a_pooler() -> None:
    with pytest.raises(ConfigError, match="next_sentence=true needs pooler=true"):
        made("bert", pooler=False)
