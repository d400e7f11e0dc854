"""The Transformer's other half, which looks at each token alone: the feed-forward layer, and the norms; and what the
blocks of a stack, of which they are parts, have in common.

relu, gelu, silu    FFN(x) = W₂ f(W₁ x + b₁) + b₂          (Vaswani et al. 2017, equation 2)
swiglu              FFN(x) = W₂ (silu(G x) ∘ U x)           (Shazeer 2020); G and U are one matrix here
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from legato.nn.capture import capture
from legato.nn.dropout import dropout
from legato.nn.kernels import training as kernels
from legato.nn.kernels.cuda import training_kernels
from legato.nn.kernels.description import register
from legato.nn.linear import Linear, xavier


def quick_gelu(x: Tensor) -> Tensor:
    """x σ(1.702 x), close to GELU (Hendrycks & Gimpel 2016)."""
    return x * torch.sigmoid(1.702 * x)


def gelu_tanh(x: Tensor) -> Tensor:
    """0.5 x (1 + tanh(√(2/π) (x + 0.044715 x³))), GPT-2's GELU.

    What is compiled is the same by 0.5 (1 + tanh y) = σ(2 y): GPUs have an exponential, and no tanh that is as exact.
    """
    if not torch.compiler.is_compiling():
        return F.gelu(x, approximate="tanh")
    wide = x.float() if x.dtype in (torch.bfloat16, torch.float16) else x
    return (wide * torch.sigmoid(1.5957691216057308 * (wide + 0.044715 * wide * wide * wide))).to(x.dtype)


ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": F.relu,
    "gelu": F.gelu,
    "gelu-tanh": gelu_tanh,  # GPT-2's
    "quick-gelu": quick_gelu,  # CLIP's
    "silu": F.silu,
    "swiglu": F.silu,  # of the gate
}


@dataclass(frozen=True)
class BlockShape:
    """What all blocks of a stack have in common."""

    width: int
    heads: int
    inner: int  # units of the feed-forward layer
    activation: str = "relu"  # of ACTIVATIONS
    kv_heads: int | None = None  # heads of keys and values; left out: as many
    norm: str = "layer"  # or "rms"
    eps: float = 1e-5
    norm_first: bool = False  # pre-norm
    bias: bool = True
    bias_qkv: bool | None = None  # of queries, keys and values; left out: bias
    bias_key: bool = True  # of keys, where queries and values have one; it changes no attention weight
    bias_attention: bool | None = None  # of what attention ends with; left out: bias
    head_width: int | None = None  # left out: width / heads
    norm_heads: bool = False  # norms of queries and keys
    dropout: float = 0.0  # on what a sublayer adds
    dropout_attention: float = 0.0  # on the attention weights
    dropout_activation: float = 0.0  # on the feed-forward layer's units

    @property
    def head_size(self) -> int:
        return self.head_width or self.width // self.heads


def make_norm(shape: BlockShape) -> nn.Module:
    """`layer`: (x - mean) / std ∘ γ + β (Ba et al. 2016); `rms`: x / rms ∘ γ (Zhang & Sennrich 2019)."""
    return (nn.RMSNorm if shape.norm == "rms" else nn.LayerNorm)(shape.width, eps=shape.eps)


@register("feed-forward")
class FeedForward(nn.Module):
    """Up to `inner` units, an activation, and down again."""

    def __init__(self, shape: BlockShape) -> None:
        super().__init__()
        self.gated = shape.activation == "swiglu"
        self.activation = ACTIVATIONS[shape.activation]
        self.dropout = shape.dropout_activation
        stacked = [shape.inner] * (2 if self.gated else 1)
        self.inner = Linear(shape.width, sum(stacked), shape.bias)  # W₁, or G over U
        self.outer = Linear(shape.inner, shape.width, shape.bias)  # W₂
        xavier(self.inner, *stacked)
        xavier(self.outer)

    @property
    def exact(self) -> bool:
        return self.activation is F.gelu

    @property
    def tanh(self) -> bool:
        return self.activation is gelu_tanh

    @property
    def _plain(self) -> bool:
        return isinstance(self.inner, Linear) and self.inner.plain

    def is_as(self, activation: str) -> bool:
        """Whether its activation is still the one of this name."""
        return self.activation is ACTIVATIONS[activation] and self.gated == (activation == "swiglu")

    def forward(self, x: Tensor) -> Tensor:
        if self.gated:
            gate, up = self.inner(x).chunk(2, dim=-1)
            x = self.activation(gate) * up
        elif self.training and (self.exact or self.tanh) and training_kernels(x) and self._plain:
            from legato.nn.kernels.cuda.biased_gelu import biased_gelu

            x = biased_gelu(F.linear(x, self.inner.weight), self.inner.bias, tanh=self.tanh)
        elif self.training and (self.exact or self.tanh) and kernels.takes(x):
            if self._plain and self.inner.out_features % kernels.MULTIPLE == 0:
                x = kernels.biased_gelu(F.linear(x, self.inner.weight), self.inner.bias, tanh=self.tanh)
            else:
                x = kernels.gelu(self.inner(x), tanh=self.tanh)
        elif self.exact and isinstance(self.inner, Linear):
            x = self.inner.gelu(x)
        else:
            x = self.activation(self.inner(x))
        capture("units", x, "row position unit")
        if self.training:
            x = dropout(x, self.dropout)
        return self.outer(x)
