"""Many to one: the states of a text's tokens as one vector, and those of all layers as one state.

mean        1/T Σ_t h_t
max         the largest of each component
first       h_1, which in BERT stands for the text
last        h_T, all that a causal model has read
attention   Σ_t a_t h_t,   a = softmax(w · tanh(W h_t))       (Yang et al. 2016)

mix         γ Σ_j s_j h_{t,j},   s = softmax(w)               of layers (ELMo; Peters et al. 2018)

The other ways to combine layers are those of BERT's table of features (Devlin et al. 2019, section 5.3).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final

import torch
from torch import Tensor, nn

from legato.errors import LegatoError
from legato.nn.linear import Linear


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


# What each way makes of the states of every layer, the embedded input first, and how many layers it needs. Sums and
# joins leave the input out, unless a model has nothing else; an unlearned `mix` weighs all alike.
WAYS: Final[Mapping[str, tuple[int, Callable[[list[Tensor]], Tensor]]]] = {
    "last": (1, lambda states: states[-1]),
    "first": (1, lambda states: states[0]),
    "second-to-last": (2, lambda states: states[-2]),
    "sum-last-4": (4, lambda states: torch.stack(states[-4:]).sum(0)),
    "concat-last-4": (4, lambda states: torch.cat(states[-4:], dim=-1)),
    "sum-all": (1, lambda states: torch.stack(states[1:] or states).sum(0)),
    "mix": (1, lambda states: torch.stack(states).mean(0)),
}


def combine_layers(states: Sequence[Tensor], how: str) -> Tensor:
    """The states (B, T, D) of every layer, the embedded input first, as one (B, T, D or 4 · D)."""
    needed, combine = WAYS[how]
    count = max(len(states) - 1, 1)  # a model without layers has its embeddings only
    if count < needed:
        raise LegatoError(f"layers={how} needs {needed} layers, and this model has {count}")
    return combine(list(states))


class ScalarMix(nn.Module):
    """A learned weighted mean of layers, and one number to scale it."""

    def __init__(self, layers: int) -> None:
        super().__init__()
        self.weights = nn.Parameter(torch.zeros(layers))
        self.scale = nn.Parameter(torch.ones(1))

    def forward(self, states: Sequence[Tensor]) -> Tensor:
        shares = self.weights.softmax(0)  # (layers,)
        return self.scale * sum(share * state for share, state in zip(shares, states, strict=True))
