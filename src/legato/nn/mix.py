"""From the states of all layers to one: a choice, a sum, or a mix whose weights are learned.

    mix_t = γ Σ_j s_j h_{t,j},   s = softmax(w)          (ELMo; Peters et al. 2018)

The other ways are those of BERT's table of features (Devlin et al. 2019, section 5.3).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import torch
from torch import Tensor, nn

from legato.errors import LegatoError

WAYS: Final = ("last", "first", "second-to-last", "sum-last-4", "concat-last-4", "sum-all", "mix")


def combine_layers(states: Sequence[Tensor], how: str) -> Tensor:
    """The states (B, T, D) of every layer, the embedded input first, as one (B, T, D or 4 · D).

    `first` is the embedded input; sums and joins leave it out. An unlearned `mix` weighs all alike.
    """
    layers = list(states[1:]) or list(states)  # a model without layers has its embeddings only
    if how == "last":
        return states[-1]
    if how == "first":
        return states[0]
    if how == "mix":
        return torch.stack(list(states)).mean(0)
    if how == "sum-all":
        return torch.stack(layers).sum(0)
    check_layers(len(layers), how)
    if how == "second-to-last":
        return layers[-2]
    if how == "sum-last-4":
        return torch.stack(layers[-4:]).sum(0)
    if how == "concat-last-4":
        return torch.cat(layers[-4:], dim=-1)
    raise LegatoError(f"there is no way '{how}' to use layers; there is {', '.join(WAYS)}")


def check_layers(count: int, how: str) -> None:
    """Refuse what needs more layers than there are."""
    needed = {"second-to-last": 2, "sum-last-4": 4, "concat-last-4": 4}.get(how, 1)
    if count < needed:
        raise LegatoError(f"layers={how} needs {needed} layers, and this model has {count}")


class ScalarMix(nn.Module):
    """A learned weighted mean of layers, and one number to scale it."""

    def __init__(self, layers: int) -> None:
        super().__init__()
        self.weights = nn.Parameter(torch.zeros(layers))
        self.scale = nn.Parameter(torch.ones(1))

    def forward(self, states: Sequence[Tensor]) -> Tensor:
        shares = self.weights.softmax(0)  # (layers,)
        return self.scale * sum(share * state for share, state in zip(shares, states, strict=True))
