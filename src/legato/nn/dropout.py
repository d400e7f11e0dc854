"""The dropouts that made recurrent language models good.

Ordinary dropout draws a new mask at every time step, which a recurrent network integrates into
noise. These draw one mask and keep it for the whole segment (Gal & Ghahramani 2016; Merity et al.
2018, "Regularizing and Optimizing LSTM Language Models", section 4).
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor


def variational_dropout(x: Tensor, p: float, training: bool) -> Tensor:
    """One mask for all time steps. `x` is time-major (T, B, D)."""
    if not training or p == 0.0:
        return x
    mask = x.new_empty(1, *x.shape[1:]).bernoulli_(1 - p).div_(1 - p)  # (1, B, D)
    return x * mask


def embed(ids: Tensor, weight: Tensor, p: float, training: bool) -> Tensor:
    """Look up `ids`, with whole words dropped: a word that is dropped is dropped wherever it occurs."""
    if not training or p == 0.0:
        return F.embedding(ids, weight)
    keep = torch.empty(weight.shape[0], device=weight.device, dtype=weight.dtype).bernoulli_(1 - p).div_(1 - p)
    # Masking the looked-up rows costs as much as the batch; masking the table, as much as the vocabulary.
    return F.embedding(ids, weight) * keep[ids].unsqueeze(-1)


def drop_connect(weight: Tensor, p: float, training: bool) -> Tensor:
    """Dropout on the recurrent weights themselves, drawn once a segment."""
    return F.dropout(weight, p, training) if training and p > 0.0 else weight
