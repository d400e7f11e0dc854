"""The Conformer (Gulati et al. 2020): self-attention and convolution in turn, for sound.

    x = subsampling(frames)                          4 frames become one state
    h = blocks(√D x)                                 half a feed-forward layer, attention, convolution, another half;
                                                     every state sees every other, and how far off that is

Attention has the relative positions of Transformer-XL, so a sound may be of any length; with a window a state sees
those near it. Hugging Face's library has it as Parakeet (`published/parakeet.py`), without windows.
"""

from __future__ import annotations

import math
from typing import Literal

from pydantic import Field, field_validator
from torch import Tensor

from legato.data.batching.batch import Batch
from legato.models.base import BlocksConfig, Sizes
from legato.models.sound_encoder import SoundConfig, SoundEncoder
from legato.nn.conformer import ConformerStack
from legato.nn.dropout import dropout
from legato.nn.feedforward import BlockShape


class ConformerConfig(BlocksConfig, SoundConfig):
    """Settings of the Conformer."""

    name: Literal["conformer"] = "conformer"
    kernel: int = Field(15, ge=1, description="states that a convolution sees, an odd number")
    window: int | None = Field(None, ge=1, description="states see only those less than so far away; left out: all")
    dropout: float = Field(0.1, ge=0, lt=1, description="on what is read and on what each sublayer adds")
    dropout_attention: float = Field(0.1, ge=0, lt=1, description="on attention weights")
    scale_input: bool = Field(True, description="subsampled frames are multiplied by √width")
    bias: bool = Field(True, description="whether linear layers and convolutions of the blocks have biases")

    @field_validator("kernel")
    @classmethod
    def _has_a_middle(cls, value: int) -> int:
        if value % 2 == 0:
            raise ValueError(f"a kernel of {value} states has no middle; use an odd number")
        return value

    @property
    def reads_both_ways(self) -> bool:
        return True

    @property
    def shape(self) -> BlockShape:
        return BlockShape(
            self.width,
            self.heads,
            self.inner,
            "silu",
            bias=self.bias,
            dropout=self.dropout,
            dropout_attention=self.dropout_attention,
            dropout_activation=self.dropout,
        )


class ConformerModel(SoundEncoder):
    """Frames (B, T, F) in; a state for each few of them out."""

    Config = ConformerConfig
    summary = "sound: self-attention and convolution in turn, over subsampled frames"
    published = "parakeet_ctc"
    config: ConformerConfig

    def __init__(self, config: ConformerConfig, sizes: Sizes) -> None:
        super().__init__(config, sizes, config.width)
        self.scale = math.sqrt(config.width) if config.scale_input else 1.0
        self.stack = ConformerStack(
            "layers",
            config.layers,
            config.shape,
            config.kernel,
            window=config.window,
            bias_convolution=config.bias,
        )

    def read(self, batch: Batch, every: list[Tensor] | None = None) -> Tensor:
        x, lengths = self.subsample(batch.inputs)
        x = dropout(self.scale * x, self.config.dropout, self.training)
        if every is not None:
            every.append(x)
        return self.stack(x, lengths, every=every)
