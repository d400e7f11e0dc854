"""GPT-2 (Radford et al. 2019): a Transformer that looks back only, and writes.

    x_t = E w_t + P t                                       the word, and a learned vector for its place
    h = blocks(x_1 … x_t), a norm after the last            pre-norm, GELU
    P(w_{t+1} | w_1 … w_t) = softmax(E h_t)                 the readout is the embedding again

Its names in Hugging Face's folders are in `published/gpt2.py`.
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from legato.models.base import BlocksConfig, Sizes
from legato.models.decoder import DecoderModel
from legato.nn.feedforward import BlockShape


class GPT2Config(BlocksConfig):
    """Settings of GPT-2."""

    name: Literal["gpt2"] = "gpt2"
    activation: Literal["gelu-tanh", "gelu", "relu", "silu"] = Field(
        "gelu-tanh", description="of the feed-forward layers"
    )
    length: int = Field(1024, ge=1, description="tokens of the longest text")
    dropout: float = Field(0.1, ge=0, lt=1, description="on what each sublayer adds")
    dropout_embedding: float | None = Field(None, ge=0, lt=1, description="on the embedded input; left out: dropout")
    dropout_attention: float | None = Field(None, ge=0, lt=1, description="on attention weights; left out: dropout")
    eps: float = Field(1e-5, gt=0, description="in the norms' denominators")
    tied: bool = Field(True, description="read out with the embedding's weights")


class GPT2Model(DecoderModel):
    """A pre-norm decoder with learned positions."""

    Config = GPT2Config
    summary = "GPT-2: a Transformer decoder with learned positions, that writes"
    published = "gpt2"
    config: GPT2Config

    def __init__(self, config: GPT2Config, sizes: Sizes) -> None:
        shape = BlockShape(
            config.width,
            config.heads,
            config.inner,
            config.activation,
            norm_first=True,
            eps=config.eps,
            dropout=config.dropout,
            dropout_attention=config.dropout if config.dropout_attention is None else config.dropout_attention,
        )
        dropout = config.dropout if config.dropout_embedding is None else config.dropout_embedding
        super().__init__(config, sizes, shape, dropout_embedding=dropout)
