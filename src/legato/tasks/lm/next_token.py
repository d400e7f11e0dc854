"""What the jobs that predict the next token share: the loss."""

from __future__ import annotations

from typing import Any

from legato.data.batching.batch import Batch
from legato.models.base import SequenceModel
from legato.training.job import Loss


def next_token_loss(model: SequenceModel, batch: Batch, state: Any, smoothing: float = 0.0) -> Loss:
    """Cross-entropy of the next token, and the model's penalties weighted by the batch's tokens."""
    assert batch.targets is not None
    if state is not None and batch.keep_state is not None:
        state = model.reset_state(state, batch.keep_state)
    output = model(batch, state)
    total, reported = model.nll(output.hidden, batch.targets, smoothing)
    for penalty in output.auxiliary.values():
        total = total + penalty * batch.tokens
    return Loss(total, reported, output.state)
