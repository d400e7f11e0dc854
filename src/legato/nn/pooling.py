"""Many to one: the states of a text's tokens as one vector.

mean        1/T Σ_t h_t
max         the largest of each component
first       h_1, which in BERT stands for the text
last        h_T, all that a causal model has read
attention   Σ_t a_t h_t,   a = softmax(w · tanh(W h_t))       (Yang et al. 2016)
"""

from __future__ import annotations

from typing import Final

import torch
from torch import Tensor, nn

from legato.nn.linear import Linear

WAYS: Final = ("first", "last", "mean", "max", "attention")


def inside(hidden: Tensor, lengths: Tensor | None) -> Tensor:
    """(B, T, 1), True where there is a token."""
    if lengths is None:
        return torch.ones((*hidden.shape[:2], 1), dtype=torch.bool, device=hidden.device)
    return (torch.arange(hidden.shape[1], device=hidden.device) < lengths[:, None]).unsqueeze(-1)


def at_positions(hidden: Tensor, positions: Tensor | None) -> Tensor:
    """States (B, T, D) at `positions` (B, N) of each row, (B, N, D); None: everywhere."""
    if positions is None:
        return hidden
    return hidden.gather(1, positions.unsqueeze(-1).expand(-1, -1, hidden.shape[-1]))


def pool(hidden: Tensor, lengths: Tensor | None, how: str) -> Tensor:
    """States (B, T, D) of texts of these lengths (B,) to their vectors (B, D)."""
    if how == "first":
        return hidden[:, 0]
    if how == "last":
        if lengths is None:
            return hidden[:, -1]
        return hidden[torch.arange(len(hidden), device=hidden.device), lengths - 1]
    own = inside(hidden, lengths)
    if how == "max":
        return hidden.masked_fill(~own, torch.finfo(hidden.dtype).min).amax(1)
    if lengths is None:
        return hidden.mean(1)
    return (hidden * own).sum(1) / lengths[:, None]


class AttentionPool(nn.Module):
    """A weighted mean whose weights the states decide themselves."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.inner = Linear(width, width)
        self.query = Linear(width, 1, bias=False)

    def forward(self, hidden: Tensor, lengths: Tensor | None) -> Tensor:
        scores = self.query(torch.tanh(self.inner(hidden)))  # (B, T, 1)
        scores = scores.masked_fill(~inside(hidden, lengths), torch.finfo(scores.dtype).min)
        return (scores.softmax(1) * hidden).sum(1)
