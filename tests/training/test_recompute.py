"""Blocks that are computed again give the same gradients, and only Transformers have blocks."""

from __future__ import annotations

import pytest
import torch

from legato.data.batching.batch import Batch, Inputs
from legato.errors import ConfigError
from legato.models.base import SequenceModel, Sizes
from legato.models.gpt2 import GPT2Config, GPT2Model
from legato.models.recurrent import RecurrentConfig, RecurrentModel
from legato.tasks.lm.job import next_token_loss
from legato.training.recompute import recompute_blocks


def gradients(model: SequenceModel, documents: bool) -> list[torch.Tensor]:
    ids = torch.randint(11, (2, 9), generator=torch.Generator().manual_seed(1))
    rows = torch.tensor([[0] * 4 + [1] * 5, [0] * 7 + [1] * 2]) if documents else None
    torch.manual_seed(2)  # of the dropout
    model.zero_grad()
    next_token_loss(model, Batch(Inputs(ids, document_ids=rows), ids.roll(-1, 1)), None).total.backward()
    return [p.grad.clone() for p in model.parameters() if p.grad is not None]


@pytest.mark.parametrize("documents", [False, True])
def test_recomputed_blocks_have_the_same_gradients_dropout_included(
    documents: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    from legato.nn import transformer

    torch.manual_seed(0)
    model = GPT2Model(GPT2Config(layers=3, width=8, heads=2, dropout=0.3, length=16), Sizes(11)).train()
    kept = gradients(model, documents)
    recompute_blocks(model)
    used = []
    checkpoint = transformer.checkpoint
    monkeypatch.setattr(transformer, "checkpoint", lambda *a, **o: used.append(1) or checkpoint(*a, **o))
    torch.testing.assert_close(gradients(model, documents), kept)
    assert len(used) == 3


def test_a_model_without_blocks_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"is for Transformers; model=lstm has no such blocks"):
        recompute_blocks(RecurrentModel(RecurrentConfig(width=8), Sizes(5)))
