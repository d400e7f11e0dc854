"""DistilBERT (Sanh et al. 2019): half of BERT's blocks, taught by BERT; without segments and without a pooler.

The equations are in `models/encoder.py`. Its positions may have started as sinusoids: they are a
table in the file all the same.
"""

from __future__ import annotations

from typing import Any, ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor

from legato.models.base import ModelConfig, Sizes
from legato.models.encoder import EncoderConfig, EncoderModel
from legato.nn.positions import sinusoids

EPS = 1e-12  # in the norms' denominators; their config has no entry for it


class DistilBertConfig(EncoderConfig):
    """Settings of DistilBERT."""

    name: Literal["distilbert"] = "distilbert"
    sinusoidal: bool = Field(False, description="positions start out as sinusoids")


class DistilBertModel(EncoderModel):
    """An encoder with learned positions, and nothing about sentences."""

    Config: ClassVar[type[ModelConfig]] = DistilBertConfig
    summary: ClassVar[str] = "DistilBERT: BERT without segments and pooler"
    published: ClassVar[str | None] = "distilbert"
    config: DistilBertConfig

    def __init__(self, config: DistilBertConfig, sizes: Sizes) -> None:
        super().__init__(config, sizes, eps=EPS, head_activation=config.activation)
        if config.sinusoidal:
            _fill_with_sinusoids(self.positions.weight)

    def default_head(self, plain: bool) -> dict[str, Any]:
        return {"pool": "first", "inner": "relu"} if plain else super().default_head(plain)


@torch.no_grad()
def _fill_with_sinusoids(table: Tensor) -> None:
    """Sines and cosines take turns here, as in the paper (Vaswani et al. 2017)."""
    length, width = table.shape
    sines, cosines = sinusoids(length, width).split([-(-width // 2), width // 2], dim=1)
    table[:, 0::2] = sines
    table[:, 1::2] = cosines
