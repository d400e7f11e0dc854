"""The Transformer's other half, which looks at each token alone: the feed-forward layer, and the norms.

relu, gelu, silu    FFN(x) = W₂ f(W₁ x + b₁) + b₂          (Vaswani et al. 2017, equation 2)
swiglu              FFN(x) = W₂ (silu(G x) ∘ U x)           (Shazeer 2020); G and U are one matrix here
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch.nn.functional as F
from torch import Tensor, nn

from legato.nn.capture import capture
from legato.nn.linear import Linear, xavier

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": F.relu,
    "gelu": F.gelu,
    "gelu-tanh": partial(F.gelu, approximate="tanh"),  # GPT-2's
    "silu": F.silu,
    "swiglu": F.silu,  # of the gate
}


def make_norm(kind: str, width: int, eps: float = 1e-5) -> nn.Module:
    """`layer`: (x - mean) / std ∘ γ + β (Ba et al. 2016); `rms`: x / rms ∘ γ (Zhang & Sennrich 2019)."""
    return nn.RMSNorm(width, eps=eps) if kind == "rms" else nn.LayerNorm(width, eps=eps)


class FeedForward(nn.Module):
    """Up to `hidden` units, an activation, and down again."""

    def __init__(
        self, width: int, hidden: int, activation: str = "relu", *, bias: bool = True, dropout: float = 0.0
    ) -> None:
        super().__init__()
        self.gated = activation == "swiglu"
        self.activation = ACTIVATIONS[activation]
        self.dropout = dropout
        self.inner = Linear(width, 2 * hidden if self.gated else hidden, bias)  # W₁, or G over U
        self.outer = Linear(hidden, width, bias)  # W₂
        xavier(self.inner, *([hidden, hidden] if self.gated else []))
        xavier(self.outer)

    def forward(self, x: Tensor) -> Tensor:
        x = self.inner(x)
        if self.gated:
            gate, up = x.chunk(2, dim=-1)
            x = self.activation(gate) * up
        else:
            x = self.activation(x)
        capture("units", x)
        if self.training:
            x = F.dropout(x, self.dropout)
        return self.outer(x)
