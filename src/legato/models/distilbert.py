"""DistilBERT (Sanh et al. 2019): half of BERT's blocks, without segments and without a pooler. The
published weights were distilled from BERT's; nothing here distils.

The equations are in `models/encoder.py`. Its positions may have started as sinusoids: they are a
table in the file all the same.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

from pydantic import Field

from legato.models.base import Sizes
from legato.models.encoder import EncoderConfig, EncoderModel
from legato.nn.positions import sinusoids


class DistilBertConfig(EncoderConfig):
    """Settings of DistilBERT."""

    name: Literal["distilbert"] = "distilbert"
    sinusoidal: bool = Field(False, description="positions start out as sinusoids")


class DistilBertModel(EncoderModel):
    """An encoder with learned positions, and nothing about sentences."""

    Config = DistilBertConfig
    summary = "DistilBERT: BERT without segments and pooler"
    published = "distilbert"
    plain_head: ClassVar[Mapping[str, Any]] = {"pool": "first", "inner": "relu"}
    config: DistilBertConfig

    def __init__(self, config: DistilBertConfig, sizes: Sizes) -> None:
        super().__init__(config, sizes, eps=1e-12)
        if config.sinusoidal:
            width, table = config.width, self.positions.weight.data
            sines, cosines = sinusoids(len(table), width).split([-(-width // 2), width // 2], dim=1)
            table[:, 0::2] = sines  # they take turns here, as in the paper (Vaswani et al. 2017)
            table[:, 1::2] = cosines
