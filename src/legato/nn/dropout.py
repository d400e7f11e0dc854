"""Dropout, and the dropouts that made recurrent language models good.

Ordinary dropout draws a new mask at every time step, which a recurrent network integrates into
noise. These draw one mask and keep it for the whole segment (Gal & Ghahramani 2016; Merity et al.
2018, "Regularizing and Optimizing LSTM Language Models", section 4).
"""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn

from legato.nn.kernels import training as kernels


def dropout(x: Tensor, p: float, training: bool = True) -> Tensor:
    """Each number is 0 with probability `p`, and 1 / (1 - p) as large otherwise (Srivastava et al. 2014)."""
    if not training or p == 0.0:
        return x
    return kernels.dropout(x, p) if kernels.takes(x) else F.dropout(x, p)


def variational_dropout(x: Tensor, p: float, training: bool) -> Tensor:
    """One mask for all time steps. `x` is time-major (T, B, D)."""
    if not training or p == 0.0:
        return x
    mask = x.new_empty(1, *x.shape[1:]).bernoulli_(1 - p).div_(1 - p)  # (1, B, D)
    return x * mask


def embed(ids: Tensor, table: nn.Embedding, p: float, training: bool) -> Tensor:
    """Look up `ids`, with whole words dropped: a word that is dropped is dropped wherever it occurs."""
    found: Tensor = table(ids)
    if not training or p == 0.0:
        return found
    keep = found.new_empty(table.num_embeddings).bernoulli_(1 - p).div_(1 - p)
    # Masking the looked-up rows costs as much as the batch; masking the table, as much as the vocabulary.
    return found * keep[ids].unsqueeze(-1)


def drop_connect(weight: Tensor, p: float, training: bool) -> Tensor:
    """Dropout on the recurrent weights themselves, drawn once a segment."""
    return dropout(weight, p, training)
