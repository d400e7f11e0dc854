"""The two tables of a vocabulary: tokens to vectors, and hidden states to a logit for each token.

In memory both have a multiple of 128 rows, which is what GPUs multiply fastest; the rows beyond the vocabulary are
zeros that nobody reads. Files hold the vocabulary's rows alone.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from legato.nn.kernels.description import is_stock, register
from legato.nn.linear import Linear

MULTIPLE = 128


def padded(rows: int) -> int:
    """
    >>> padded(50257)
    50304
    """
    return -(-rows // MULTIPLE) * MULTIPLE


@register("table")
class TokenEmbedding(nn.Embedding):
    """A vector for each token."""

    def __init__(self, vocabulary: int, width: int) -> None:
        super().__init__(padded(vocabulary), width)
        self.vocabulary = vocabulary
        clear_padding(self)


@register("product")
class Readout(Linear):
    """A logit for each token."""

    def __init__(self, width: int, vocabulary: int, bias: bool = False) -> None:
        super().__init__(width, padded(vocabulary), bias)
        self.vocabulary = vocabulary
        clear_padding(self)

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x)[..., : self.vocabulary]


def plain_product(layer: nn.Module | None) -> bool:
    """Whether a layer is y = x Wᵀ + b and nothing else: no adapter, no hook, no other kind of linear layer."""
    if type(layer) not in (nn.Linear, Linear, Readout) or (isinstance(layer, Linear) and layer.adapted):
        return False
    return is_stock(layer)


@torch.no_grad()
def clear_padding(table: TokenEmbedding | Readout) -> None:
    """Zero the rows that no token has."""
    table.weight[table.vocabulary :] = 0
    if isinstance(table, Readout) and table.bias is not None:
        table.bias[table.vocabulary :] = 0


def padding_parameters(module: nn.Module, *, trainable: bool = False) -> int:
    """How many of a model's parameters, or of those that are trained, are such zeros; a tied table's count once."""
    unused = {}
    for table in module.modules():
        if isinstance(table, TokenEmbedding | Readout):
            for part in table.parameters(recurse=False):
                if part.requires_grad or not trainable:
                    unused[id(part)] = part[table.vocabulary :].numel()
    return sum(unused.values())
