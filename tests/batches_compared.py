"""Batches compared: tensor by tensor, and targets at some positions of a row as targets everywhere."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from legato.data.batching.batch import IGNORE, Batch, named_tensors


def spread(targets: Any, positions: Any, width: int) -> np.ndarray[Any, np.dtype[Any]]:
    """Targets (B, N) at `positions` (B, N) as (B, width), IGNORE elsewhere."""
    whole = np.full((len(targets), width), IGNORE)
    for row, (some, places) in enumerate(zip(np.asarray(targets), np.asarray(positions), strict=True)):
        for target, place in zip(some, places, strict=True):
            if target != IGNORE:
                assert whole[row, place] == IGNORE  # each place once
                whole[row, place] = target
    return whole


def spread_targets(batch: Batch) -> Tensor:
    """A batch's targets as (B, T)."""
    assert batch.targets is not None
    return torch.from_numpy(spread(batch.targets, batch.positions, batch.inputs.token_ids.shape[1]))


def same(left: Batch, right: Batch) -> bool:
    """Whether two batches have the same tensors and the same counts."""
    one, other = named_tensors(left), named_tensors(right)
    counts = [(batch.reset_all, batch.fixed_shape, batch.tokens, batch.read) for batch in (left, right)]
    return counts[0] == counts[1] and one.keys() == other.keys() and all(torch.equal(one[n], other[n]) for n in one)
